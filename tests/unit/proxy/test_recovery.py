"""What goes to a new writer, and in which order, when the old one is lost."""

from __future__ import annotations

import asyncio

import pytest

from polarless.proxy import barrier
from polarless.proxy.messages import BIND, PARSE, SYNC_MESSAGE, message
from polarless.proxy.service import Proxy
from polarless.wire import relay as wire
from tests.unit.proxy.played import READY, Client, Node, complete, make_proxy, query

UPDATE = query("update t set v = v + 1 where id = 1")


async def cluster() -> tuple[Proxy, Node, Node]:
    proxy = make_proxy()
    old, new = Node(proxy, "compute-1"), Node(proxy, "compute-2")
    old.hello(epoch=1, writable=True)
    return proxy, old, new


async def data(node: Node) -> list[wire.Frame]:
    """The cycles that the node was sent; it says of each commit in doubt that it is not there."""
    found = []
    for _ in range(3):
        for frame in await node.heard():
            if frame.kind == wire.VERDICT:
                asked = wire.unpack(frame.payload)
                verdict = {"id": asked["id"], "state": wire.ABSENT, "lsn": 0, "note": b""}
                node.tell(wire.VERDICT, 0, 0, wire.pack(verdict))
            elif frame.kind == wire.DATA:
                found.append(frame)
    return found


async def begin_and_update(client: Client, node: Node) -> None:
    """A transaction that holds the row."""
    for text, tag in ((query("begin"), "BEGIN"), (UPDATE, "UPDATE 1")):
        client.say(text)
        (frame,) = await data(node)
        node.answer(frame, complete(tag), state=wire.IN_TRANSACTION)
        assert client.told() == complete(tag) + READY[wire.IN_TRANSACTION]


def bodies(frames: list[wire.Frame]) -> list[bytes]:
    return [frame.payload for frame in frames]


async def test_whoever_had_the_row_gets_it_again_before_whoever_waited_for_it() -> None:
    proxy, old, new = await cluster()
    waits, holds, idle = [await Client.greeted(proxy, old) for _ in range(3)]
    await begin_and_update(holds, old)
    waits.say(UPDATE)
    assert bodies(await data(old)) == [UPDATE]
    old.die()
    new.hello(epoch=2, writable=True)
    idle.say(UPDATE)
    # Nobody but the transaction that goes on, until it has got as far as it was.
    first = await data(new)
    assert bodies(first) == [query("begin")]
    new.answer(first[0], complete("BEGIN"), state=wire.IN_TRANSACTION)
    second = await data(new)
    assert bodies(second) == [UPDATE]
    assert second[0].session == first[0].session
    new.answer(second[0], complete("UPDATE 1"), state=wire.IN_TRANSACTION)
    rest = await data(new)
    assert bodies(rest) == [UPDATE, UPDATE]
    assert first[0].session not in {frame.session for frame in rest}
    assert holds.told() == b""


async def test_half_an_answer_is_completed_before_anything_new_is_begun() -> None:
    proxy, old, new = await cluster()
    waits, holds = [await Client.greeted(proxy, old) for _ in range(2)]
    holds.say(query("begin"))
    (frame,) = await data(old)
    old.answer(frame, complete("BEGIN"), state=wire.IN_TRANSACTION)
    holds.say(UPDATE)
    (frame,) = await data(old)
    meta = {"snapshots": [7], "start_us": 1}
    old.tell(wire.META, frame.session, frame.cycle, wire.pack(meta))
    old.tell(wire.DATA, frame.session, frame.cycle, complete("UPDATE 1"))
    holds.told()
    waits.say(UPDATE)
    await data(old)
    old.die()
    new.hello(epoch=2, writable=True)
    (first,) = await data(new)
    new.answer(first, complete("BEGIN"), state=wire.IN_TRANSACTION)
    (second,) = await data(new)
    assert second.session == first.session
    new.answer(second, complete("UPDATE 1"), state=wire.IN_TRANSACTION)
    # The client has the first half already.
    assert holds.told() == READY[wire.IN_TRANSACTION]
    assert bodies(await data(new)) == [UPDATE]


async def test_a_statement_that_comes_in_pieces_meanwhile_is_run_whole() -> None:
    proxy, old, new = await cluster()
    client = await Client.greeted(proxy, old)
    client.say(UPDATE[:9])
    await data(old)
    old.die()
    assert client.session.recovering
    client.say(UPDATE[9:])
    new.hello(epoch=2, writable=True)
    assert b"".join(bodies(await data(new))) == UPDATE


async def test_rows_of_a_copy_that_come_meanwhile_are_not_left_behind() -> None:
    proxy, old, new = await cluster()
    client = await Client.greeted(proxy, old)
    copy, rows = query("copy t from stdin"), message(0x64, b"1\n")
    client.say(copy)
    (frame,) = await data(old)
    old.tell(wire.COPYING, frame.session, frame.cycle)
    meta = {"snapshots": [7], "start_us": 1}
    old.tell(wire.META, frame.session, frame.cycle, wire.pack(meta))
    answer = message(0x47, b"\0\0\1\0\0")
    old.tell(wire.DATA, frame.session, frame.cycle, answer)
    assert client.told() == answer
    client.say(rows)
    await data(old)
    old.die()
    client.say(rows + message(0x63, b""))
    new.hello(epoch=2, writable=True)
    frames = await data(new)
    assert b"".join(bodies(frames)) == copy + rows + rows + message(0x63, b"")
    new.answer(frames[-1], answer, complete("COPY 2"))
    assert client.told() == complete("COPY 2") + READY[wire.IDLE]


async def test_transactions_that_are_ending_come_first_and_are_ended() -> None:
    # The old writer let go of the locks of a commit that was lost, and another has got them.
    proxy, old, new = await cluster()
    is_open, ends = [await Client.greeted(proxy, old) for _ in range(2)]
    await begin_and_update(is_open, old)
    await begin_and_update(ends, old)
    commit = query(" COMMIT ;")
    ends.say(commit)
    await data(old)
    old.die()
    new.hello(epoch=2, writable=True)
    tags = {query("begin"): "BEGIN", UPDATE: "UPDATE 1"}
    sessions = set()
    for text in (query("begin"), UPDATE):
        (frame,) = await data(new)
        assert frame.payload == text
        sessions.add(frame.session)
        new.answer(frame, complete(tags[text]), state=wire.IN_TRANSACTION)
    (frame,) = await data(new)
    assert frame.payload == commit
    assert {frame.session} == sessions
    new.answer(frame, complete("COMMIT"))
    assert ends.told() == complete("COMMIT") + READY[wire.IDLE]
    (frame,) = await data(new)
    assert frame.payload == query("begin")
    assert {frame.session} != sessions


async def test_a_writer_lost_before_an_open_transaction_has_its_turn() -> None:
    proxy, old, new = await cluster()
    is_open, ends = [await Client.greeted(proxy, old) for _ in range(2)]
    await begin_and_update(is_open, old)
    await begin_and_update(ends, old)
    ends.say(query("commit"))
    await data(old)
    old.die()
    new.hello(epoch=2, writable=True)
    # The one that ends is run again, the other waits for it.
    assert bodies(await data(new)) == [query("begin")]
    new.die()
    third = Node(proxy, "compute-3")
    third.hello(epoch=3, writable=True)
    for text, tag in ((query("begin"), "BEGIN"), (UPDATE, "UPDATE 1")):
        (frame,) = await data(third)
        assert frame.payload == text
        third.answer(frame, complete(tag), state=wire.IN_TRANSACTION)
    (frame,) = await data(third)
    assert frame.payload == query("commit")
    third.answer(frame, complete("COMMIT"))
    (frame,) = await data(third)
    assert frame.payload == query("begin")
    assert is_open.session.recovering


async def test_new_work_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "BARRIER_MAX_S", 0.01)
    proxy, old, new = await cluster()
    opened, wake = asyncio.Event(), proxy._wake

    def open_and_tell() -> None:
        wake()
        opened.set()

    monkeypatch.setattr(proxy.barrier, "_on_open", open_and_tell)
    holds, other = [await Client.greeted(proxy, old) for _ in range(2)]
    await begin_and_update(holds, old)
    old.die()
    new.hello(epoch=2, writable=True)
    other.say(UPDATE)
    assert bodies(await data(new)) == [query("begin")]
    await asyncio.wait_for(opened.wait(), 10)
    assert bodies(await data(new)) == [UPDATE]


async def test_a_client_that_leaves_holds_nobody_back() -> None:
    proxy, old, new = await cluster()
    holds, other = [await Client.greeted(proxy, old) for _ in range(2)]
    await begin_and_update(holds, old)
    old.die()
    new.hello(epoch=2, writable=True)
    other.say(UPDATE)
    await data(new)
    holds.session.connection_lost(None)
    assert bodies(await data(new)) == [UPDATE]


async def test_a_transaction_that_cannot_go_on_still_knows_what_was_prepared() -> None:
    proxy, old, new = await cluster()
    client = await Client.greeted(proxy, old)
    parse = b"s1\0select 1\0\0\0"
    client.say(message(PARSE, parse) + SYNC_MESSAGE)
    (frame,) = await data(old)
    old.tell(wire.META, frame.session, frame.cycle, wire.pack({"prepared": {b"s1": parse}}))
    old.answer(frame, message(0x31, b""))
    client.told()
    await begin_and_update(client, old)
    second = b"s2\0select 2\0\0\0"
    client.say(message(PARSE, second) + SYNC_MESSAGE)
    (frame,) = await data(old)
    old.tell(wire.META, frame.session, frame.cycle, wire.pack({"prepared": {b"s2": second}}))
    old.answer(frame, message(0x31, b""), state=wire.IN_TRANSACTION)
    old.die()
    new.hello(epoch=2, writable=True)
    brought, begun = await data(new)
    assert brought.payload == message(PARSE, parse) + SYNC_MESSAGE
    new.answer(brought, message(0x31, b""))
    new.answer(begun, complete("NOT WHAT IT WAS"), state=wire.IN_TRANSACTION)
    frames = await new.heard()
    kinds = [frame.kind for frame in frames]
    # Both statements first, outside of any transaction; then the bad news for what comes next.
    assert kinds == [wire.CLOSE, wire.OPEN, wire.DATA, wire.DOOM]
    expected = message(PARSE, parse) + message(PARSE, second) + SYNC_MESSAGE
    assert frames[2].payload == expected
    bind = message(BIND, b"\0s2\0\0\0\0\0\0\0") + SYNC_MESSAGE
    client.say(bind)
    assert bodies(await data(new)) == [bind]
