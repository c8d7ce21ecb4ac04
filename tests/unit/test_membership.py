"""What the writer says when a new home asks about the slots that it found."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from compute import membership
from compute.membership import Member
from polarless.errors import ConnectionLost, DeadlineExceeded, Fenced
from polarless.wire.storage import PAGE_LSNS_MAX


class Storage:
    """Page p has LSN ``lsns[p]``; every question is kept."""

    def __init__(self, lsns: dict[int, int]) -> None:
        self.lsns = lsns
        self.asked: list[tuple[list[int], int]] = []
        self.down = False

    async def page_lsns(
        self, page_ids: Sequence[int], as_of: int, *, deadline_s: float
    ) -> list[int]:
        self.asked.append((list(page_ids), as_of))
        if self.down:
            raise DeadlineExceeded("page_lsns: storage did not answer in time")
        return [self.lsns.get(page_id, 0) for page_id in page_ids]


async def ask(storage: Storage, claims: list[tuple[int, int]]) -> list[Sequence[bool]]:
    """Every answer that the home gets."""
    tasks: list[asyncio.Task[None]] = []

    def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(coroutine))

    member = Member(SimpleNamespace(), spawn, "home")  # type: ignore[arg-type]
    member.engine = SimpleNamespace(store=storage)  # type: ignore[assignment]
    answers: list[Sequence[bool]] = []
    member.on_confirm(70, claims, answers.append)
    await asyncio.gather(*tasks)
    return answers


async def test_slot_is_good_if_storage_has_the_page_at_its_lsn() -> None:
    storage = Storage({1: 50, 2: 60})
    # Page 3 is none that storage knows, whatever the slot says.
    claims = [(1, 50), (2, 50), (3, 40), (3, 0)]
    assert await ask(storage, claims) == [[True, False, False, False]]
    assert storage.asked == [([1, 2, 3, 3], 70)]


async def test_questions_are_as_long_as_storage_takes_them() -> None:
    claims = [(page, page) for page in range(1, PAGE_LSNS_MAX + 3)]
    storage = Storage({page: page for page, _ in claims if page != PAGE_LSNS_MAX + 1})
    (answer,) = await ask(storage, claims)
    assert [len(page_ids) for page_ids, _ in storage.asked] == [PAGE_LSNS_MAX, 2]
    assert list(answer) == [page != PAGE_LSNS_MAX + 1 for page, _ in claims]


async def test_a_home_that_control_names_is_joined_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "RETRY_FIRST_S", 3600.0)
    monkeypatch.setattr(membership, "RETRY_MAX_S", 3600.0)
    tried: list[str] = []
    tasks: list[asyncio.Task[None]] = []
    refused = asyncio.Event()

    class Pool:
        connected = False
        home_epoch = 1

        async def rejoin(self, address: str, home_epoch: int, **keywords: Any) -> Any:
            tried.append(address)
            if address == "new":
                raise Fenced("this is where the test ends")
            refused.set()
            raise ConnectionLost("the old home is dead")

    def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(coroutine))

    member = Member(SimpleNamespace(), spawn, "old")  # type: ignore[arg-type]
    member.pool = Pool()  # type: ignore[assignment]
    member.engine = SimpleNamespace(  # type: ignore[assignment]
        fetcher=SimpleNamespace(restart_all=lambda: None),
        cache=SimpleNamespace(frames={}),
        log=None,
        fenced=None,
    )
    member.on_lost(ConnectionLost("the home's process ended"))
    await refused.wait()
    member.new_home("new", 2)
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert tried == ["old", "new"]


@pytest.mark.allow_log("storage was not asked")
async def test_without_storage_there_is_no_answer() -> None:
    storage = Storage({1: 50})
    storage.down = True
    assert await ask(storage, [(1, 50)]) == []
