"""COPY FROM STDIN: the protocol around it, and its ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.session.fakes import Harness
from tests.unit.session.wire import COPY_DONE, B, E, H, P, Q, S, X, copy_fail, d


@pytest.fixture
def h() -> Harness:
    return Harness()


async def test_rows_go_in(h: Harness) -> None:
    client = h.connect()
    assert client.query("copy") == ["G"]
    client.send(d("a\nb"), d("b\n"), H, S, COPY_DONE)
    assert await client.settle() == ["C COPY 2", "Z I"]
    assert h.engine.committed == ["a", "bb"]


async def test_copy_in_the_extended_protocol(h: Harness) -> None:
    client = h.connect()
    assert client.send(P("copy"), B(), E(), S) == ["1", "2", "G"]
    client.send(d("a\n"), COPY_DONE, S)
    assert await client.settle() == ["C COPY 1", "Z I"]
    assert h.engine.committed == ["a"]


async def test_the_client_gives_up(h: Harness) -> None:
    client = h.connect()
    client.query("copy")
    client.send(d("a\n"), copy_fail("no more"))
    assert await client.settle() == ["E ERROR 57014 COPY from stdin failed: no more", "Z I"]
    assert h.planner.aborted == 1
    assert h.engine.committed == []
    assert client.query("put b") == ["C INSERT 0 1", "Z I"]


async def test_bad_data_ends_it_and_what_follows_is_ignored(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    client.query("copy")
    client.send(d("bad\n"))
    assert await client.settle() == ["E ERROR 22P04 bad row", "Z E"]
    assert client.send(d("more\n"), COPY_DONE) == []
    assert client.query("rollback") == ["C ROLLBACK", "Z I"]
    assert h.engine.open == 0


async def test_bad_data_in_the_extended_protocol_waits_for_sync(h: Harness) -> None:
    client = h.connect()
    client.send(P("copy"), B(), E())
    client.send(d("bad\n"))
    assert await client.settle() == ["E ERROR 22P04 bad row"]
    assert client.send(d("more\n"), COPY_DONE, S) == ["Z I"]


async def test_another_message_in_the_middle_ends_it(h: Harness) -> None:
    client = h.connect()
    client.query("copy")
    client.send(Q("select 1"))
    assert (await client.settle())[0].startswith("E ERROR 08P01 unexpected message type 'Q'")


async def test_messages_behind_a_copy_wait_for_its_end(h: Harness) -> None:
    client = h.connect()
    h.planner.copy_gate = asyncio.Event()
    client.query("copy")
    client.send(d("a\n"), COPY_DONE, Q("get"))
    assert await client.settle() == []
    h.planner.copy_gate.set()
    assert await client.settle() == ["C COPY 1", "Z I", "T a", "D a", "C SELECT 1", "Z I"]


async def test_the_socket_is_not_read_while_rows_wait(h: Harness) -> None:
    client = h.connect()
    h.planner.copy_gate = asyncio.Event()
    client.query("copy")
    client.send(d("x" * 600_000 + "\n"), d("x" * 600_000 + "\n"))
    await client.settle()
    assert not client.is_read()
    h.planner.copy_gate.set()
    await client.settle()
    assert client.is_read()
    client.send(COPY_DONE)
    assert await client.settle() == ["C COPY 2", "Z I"]


@pytest.mark.allow_log("the client said goodbye in the middle of a COPY")
@pytest.mark.parametrize("goodbye", [True, False])
async def test_the_client_goes_away_in_the_middle(h: Harness, goodbye: bool) -> None:
    client = h.connect()
    client.query("copy")
    client.send(d("a\n"))
    await client.settle()
    if goodbye:
        client.session.data_received(X)
    else:
        client.lose()
    await client.settle()
    assert h.planner.aborted == 1
    assert h.engine.open == 0
    assert h.engine.committed == []
