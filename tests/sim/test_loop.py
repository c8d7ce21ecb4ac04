"""The simulator's loop: what runs when, and what of a process that is stopped or killed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator

import pytest

from tests.sim.loop import CANCELLED_MAX, PROCESS, Killed, Process, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


def of(process: Process) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return context


def test_timers_of_one_time_run_in_the_order_of_their_making(loop: VirtualLoop) -> None:
    said: list[int] = []
    for number in range(20):
        loop.call_at(loop.now + 5, said.append, number)
    loop.call_at(loop.now + 1, said.append, -1)
    loop.call_later(2, said.append, -2).cancel()
    began = loop.now
    loop.run_until_complete(asyncio.sleep(5))
    assert said == [-1, *range(20)]
    assert loop.now - began == pytest.approx(5)


def test_timers_that_were_cancelled_do_not_pile_up(loop: VirtualLoop) -> None:
    for _ in range(3 * CANCELLED_MAX):
        loop.call_later(3600, print).cancel()
    assert len(loop._timers) <= CANCELLED_MAX
    began = loop.now
    loop.run_until_complete(asyncio.sleep(1))
    assert loop.now - began == pytest.approx(1)


def test_a_stopped_process_does_everything_late_and_a_killed_one_nothing(loop: VirtualLoop) -> None:
    stopped, killed = Process("a", 1), Process("b", 2)
    said: list[object] = []
    stopped.stopped = True
    for number in range(3):
        loop.call_later(number, said.append, number, context=of(stopped))
        loop.call_later(number, said.append, "never", context=of(killed))
    killed.kill()
    loop.run_until_complete(asyncio.sleep(10))
    assert said == []
    stopped.go_on(loop)
    loop.run_until_complete(asyncio.sleep(0))
    assert said == [0, 1, 2]


def test_whoever_is_killed_in_a_callback_stops_nobody_else(loop: VirtualLoop) -> None:
    said: list[str] = []

    def die() -> None:
        raise Killed

    def fail() -> None:
        raise ValueError("a fault of the product")

    for callback in (die, fail, lambda: said.append("went on")):
        loop.call_soon(callback)
    loop.run_until_complete(asyncio.sleep(0))
    assert said == ["went on"]
    assert [type(problem["exception"]) for problem in loop.problems] == [ValueError]


def test_somebody_who_never_rests_is_found(loop: VirtualLoop) -> None:
    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(RuntimeError, match=r"time stands still.*again"):
        loop.run_until_complete(asyncio.sleep(1))


def test_a_loop_in_which_everybody_waits_says_so(loop: VirtualLoop) -> None:
    with pytest.raises(RuntimeError, match="deadlock"):
        loop.run_until_complete(loop.create_future())
