from __future__ import annotations

import pytest

from memory_pool.directory import messages as m


def test_what_a_peer_may_say() -> None:
    m.check(m.Register(1, object(), 7, False))
    m.check(m.Advance(1, object(), 1, 10, 0, [1, 2]))
    m.check(m.Fence(None, object(), 3))
    m.check(m.Joined(1, object(), "ro1", 5, False, 1, True, [1], ["ro2"]))
    m.check(m.Confirmed(1, 2, b"\1"))
    m.check(m.Report(1, []))


@pytest.mark.parametrize(
    "event",
    [
        m.Register(1, None, -1, False),
        m.Register(1, None, 1 << 63, False),
        m.Register(1, None, "7", False),  # type: ignore[arg-type]
        m.Advance(1, None, 1, 10, 0, [1, -2]),
        m.Advance(1, None, 1, 10, 0, [[1]]),  # type: ignore[list-item]
        m.Advance(1, None, 1, 10, 0, 5),  # type: ignore[arg-type]
        m.Advance(1, None, 1, None, 0, []),  # type: ignore[arg-type]
        m.Report(1, [True]),
        m.Joined(1, None, "ro1", 5, False, 1, True, [], [b"x"]),  # type: ignore[list-item]
        m.Confirmed(1, 2, [1]),  # type: ignore[arg-type]
    ],
)
def test_event_that_would_stop_a_step_half_way_is_refused(event: m.Event) -> None:
    with pytest.raises(ValueError):
        m.check(event)
