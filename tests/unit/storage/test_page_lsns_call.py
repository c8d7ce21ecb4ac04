"""The call `page_lsns`: what reaches the engine, and what is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polarless.errors import RemoteProtocolError
from polarless.wire import storage as wire
from storage.node import StorageNode


def called(*args: Any) -> list[Any]:
    """What a node answers whose pages all have an LSN of ten times their id."""

    async def run() -> list[Any]:
        node = StorageNode(cast(Any, None), cluster=b"c")
        node.engine = cast(
            Any,
            SimpleNamespace(
                when_ingested=lambda as_of, callback: callback(),
                page_lsns=lambda ids, as_of: [min(10 * page_id, as_of) for page_id in ids],
            ),
        )
        answers: list[Any] = []
        call = SimpleNamespace(method=wire.PAGE_LSNS, args=args, answer=answers.append)
        node.on_call(cast(Any, None), cast(Any, call))
        return answers

    return asyncio.run(run())


def test_every_page_is_answered_in_order() -> None:
    assert called((3, 1, 9), 50) == [[30, 10, 50]]
    assert called(tuple(range(wire.PAGE_LSNS_MAX)), 0) == [[0] * wire.PAGE_LSNS_MAX]


@pytest.mark.parametrize(
    "args", [(), ((1,),), (1, 2), ((1, -1), 2), ((1,), "2"), ((1,) * (wire.PAGE_LSNS_MAX + 1), 2)]
)
def test_what_is_no_question_is_refused(args: tuple[Any, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        called(*args)
