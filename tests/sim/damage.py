"""A bit of storage's disk flips while nobody looks, and then everything starts from that disk.

Every answer is right, or an error that says what is damaged: XX001 from a node, or a process that
does not start. Storage is closed in good order before: a log that was not may end a little earlier,
since nothing tells a torn write from a flipped bit at its end (`storage/log/segment.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from tests.sim.client import SimError
from tests.sim.cluster import SimCluster
from tests.sim.workload import Work

DAMAGED: Final = "XX001"
STARTS_S: Final = 10.0
ANSWERS_S: Final = 60.0


async def flip_and_check(cluster: SimCluster, works: Sequence[Work], rng: random.Random) -> None:
    """The workloads' checks once more. Raises AssertionError if an answer is wrong."""
    said = len(cluster.trace)
    cluster.while_storage_is_down = lambda: _flip(cluster, rng)
    cluster.stop("storage")
    # From here on nothing is left of it but the disk.
    for member in list(cluster.core.members.members.values()):
        if member.kind in ("compute", "memory"):
            cluster.kill(member.name)
    try:
        await cluster.until_serving(STARTS_S)
    except AssertionError:
        _has_said_so(cluster, said, "it does not serve")
        return
    for work in works:
        try:
            await asyncio.wait_for(work.check(), ANSWERS_S)
        except SimError as error:
            cluster.say(f"{type(work).__name__}: {error}")
            if error.args[0] != DAMAGED:
                _has_said_so(cluster, said, str(error))
        except (OSError, TimeoutError) as error:
            _has_said_so(cluster, said, f"{type(error).__name__}: {error}")


def _has_said_so(cluster: SimCluster, since: int, what: str) -> None:
    # A compute node that meets it in its own work ends, and its log says why.
    signs = ("CorruptData", "failed with exit code")
    told = any(sign in line for line in cluster.trace[since:] for sign in signs)
    assert told, f"damaged, and {what}"


def _flip(cluster: SimCluster, rng: random.Random) -> None:
    cluster.while_storage_is_down = lambda: None
    log, pages = cluster.disk_log, cluster.disk_pages
    places = {"log": 4, "the log's state": 1}
    if pages.pages:
        places |= {"page": 8, "the pages' state": 1}
    (where,) = rng.choices(list(places), list(places.values()))
    if where == "log":
        segment = rng.choice(sorted(log.contents))
        damaged, bit = _flipped(bytes(log.contents[segment]), rng)
        log.contents[segment] = bytearray(damaged)
        where = f"segment {segment} of the log"
    elif where == "page":
        page_id = rng.choice(sorted(pages.pages))
        pages.pages[page_id], bit = _flipped(pages.pages[page_id], rng)
        where = f"page {page_id}"
    else:
        disk = log if where == "the log's state" else pages
        disk.state, bit = _flipped(disk.state or b"\0", rng)
    cluster.say(f"fault: bit {bit} of {where} flips")


def _flipped(data: bytes, rng: random.Random) -> tuple[bytes, int]:
    bit = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed), bit
