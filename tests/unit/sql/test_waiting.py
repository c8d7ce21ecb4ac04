"""pg_sleep and advisory locks: waited for by running again, and done once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from compute.buffer.waits import resumed
from compute.sql import waiting
from compute.sql.plan import SqlState
from compute.txn.locks import LockTable
from polarless.errors import Deadlock, Reroute


class Clock:
    def __init__(self) -> None:
        self.time = 100.0
        self.due: list[tuple[float, Any]] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, callback: Any) -> Any:
        self.due.append((delay_s, callback))
        return SimpleNamespace(cancel=self.due.clear)


class Node:
    """Sessions that share a lock table."""

    def __init__(self) -> None:
        self.engine: Any = SimpleNamespace(writable=True, locks=LockTable(), clock=Clock())

    def session(self) -> Any:
        notices: list[str] = []
        return SimpleNamespace(
            engine=self.engine, sql=SqlState(), txn=None, notices=notices,
            notice=lambda severity, state, text: notices.append(text),
        )  # fmt: skip


def test_a_pause_is_waited_for_once() -> None:
    session = Node().session()
    clock = session.engine.clock
    with pytest.raises(waiting.Sleep) as caught:
        waiting.sleep(session, 2.0)
    woken: list[Any] = []
    caught.value.subscribe(woken.append)
    assert clock.due[0][0] == 2.0
    clock.time += 0.5
    with pytest.raises(waiting.Sleep) as caught:
        waiting.sleep(session, 2.0)  # woken by something else
    caught.value.subscribe(woken.append)
    assert clock.due[1][0] == 1.5
    clock.time += 1.5
    clock.due[1][1]()
    assert woken == [None]
    assert waiting.sleep(session, 2.0) == ""
    with pytest.raises(waiting.Sleep):
        waiting.sleep(session, 1.0)  # the next statement's own


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_no_pause(seconds: float) -> None:
    assert waiting.sleep(Node().session(), seconds) == ""


def test_locks_are_counted() -> None:
    node = Node()
    one, two = node.session(), node.session()
    waiting.lock(one, 1)
    waiting.lock(one, 1)
    assert not waiting.try_lock(two, 1)
    assert waiting.try_lock(two, 1, 0), "two numbers are another lock than one"
    assert waiting.unlock(one, 1)
    assert not waiting.try_lock(two, 1)
    assert waiting.unlock(one, 1)
    assert not waiting.unlock(one, 1)
    assert one.notices == ["you don't own a lock of type ExclusiveLock"]
    assert waiting.try_lock(two, 1)


def test_a_lock_of_the_transaction_ends_with_it() -> None:
    node = Node()
    one, two = node.session(), node.session()
    one.txn = object()
    waiting.xact_lock(one, 1)
    waiting.lock(one, 1)
    one.sql.advisory.end_transaction()
    assert not waiting.try_lock(two, 1), "it is locked for the session too"
    waiting.unlock_all(one)
    assert waiting.try_xact_lock(two, 1)
    assert waiting.try_xact_lock(one, 1), "without a transaction it ended with the statement"


async def test_first_come_first_served() -> None:
    node = Node()
    sessions = [node.session() for _ in range(3)]
    waiting.lock(sessions[0], 1)
    order: list[int] = []

    async def wait(number: int) -> None:
        with pytest.raises(waiting._AdvisoryWait) as caught:
            waiting.lock(sessions[number], 1)
        assert caught.value.reason == "advisory lock (1,)"
        await resumed(caught.value)
        waiting.lock(sessions[number], 1)
        order.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in (1, 2)]
    await asyncio.sleep(0)
    waiting.unlock(sessions[0], 1)
    await tasks[0]
    assert not waiting.try_lock(sessions[0], 1)
    sessions[1].sql.advisory.end_all()
    await tasks[1]
    assert order == [1, 2]


def test_who_gives_up_leaves_nothing() -> None:
    node = Node()
    one, two, three = (node.session() for _ in range(3))
    waiting.lock(one, 1)
    with pytest.raises(waiting._AdvisoryWait) as caught:
        waiting.lock(two, 1)
    caught.value.subscribe(lambda error: None)
    waiting.unlock(one, 1)
    # It was handed over, and then the statement was cancelled before it ran again.
    caught.value.cancel()
    assert waiting.try_lock(three, 1)


def test_a_cycle_is_found() -> None:
    node = Node()
    one, two = node.session(), node.session()
    waiting.lock(one, 1)
    waiting.lock(two, 2)
    with pytest.raises(waiting._AdvisoryWait) as caught:
        waiting.lock(one, 2)
    caught.value.subscribe(lambda error: None)
    with pytest.raises(Deadlock):
        waiting.lock(two, 1)


def test_readers_have_none() -> None:
    node = Node()
    node.engine.writable = False
    with pytest.raises(Reroute):
        waiting.lock(node.session(), 1)
    waiting.unlock_all(node.session())
