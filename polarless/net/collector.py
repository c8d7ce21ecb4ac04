"""The cyclic garbage collector, kept from stopping the loop.

Caches hold millions of tuples, dicts and lists and no cycles, and looking at all of them takes a
tenth of a second. So what a process has when it begins to serve is never looked at again, young
objects are looked at twice (`YOUNG` at a time: one millisecond, then a few times as many), and the
old ones only when nobody is served, or when many connections have ended, which is what makes cycles
that live long.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from polarless.kernel.world import Clock

YOUNG: Final = 10_000
# So many young collections, then one over what they have left.
MIDDLE: Final = 4
NEVER: Final = 1_000_000
LOOK_S: Final = 10.0
GONE_MAX: Final = 2_000


def tame(
    clock: Clock, *, young: int = YOUNG, gone: Callable[[], int], is_idle: Callable[[], bool]
) -> None:
    """From now on; ``gone()`` counts the connections that have ended. Called once a process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, MIDDLE, NEVER)
    collected = 0

    def look() -> None:
        nonlocal collected
        ended = gone() - collected
        if ended > GONE_MAX or (ended and is_idle()):
            collected += ended
            gc.collect()
        clock.call_later(LOOK_S, look)

    clock.call_later(LOOK_S, look)
