"""Pages and groups: the writer's bytes are storage's bytes, and no cut or flipped byte gets by."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polarless.errors import CorruptData
from polarless.kernel import redo
from polarless.kernel.apply import apply, pruned
from polarless.kernel.page import BRANCH, LEAF, Frame, decode, encode, measure

KEYS = st.integers(-50, 50)
PAYLOADS = st.one_of(st.none(), st.binary(max_size=40), st.tuples(KEYS, KEYS, KEYS))


@st.composite
def leaf_records(draw: st.DrawFn) -> list[redo.Record]:
    """A leaf's life: formatted, written, cut, pruned, extended, in any order that makes sense."""
    records: list[redo.Record] = [(redo.FORMAT, 9, LEAF, 4, None, None, (), ())]
    for _ in range(draw(st.integers(0, 30))):
        op = draw(st.sampled_from([redo.PUT] * 6 + [redo.CUT, redo.PRUNE, redo.EXTEND]))
        if op == redo.PUT:
            records.append((op, 9, draw(KEYS), draw(PAYLOADS)))
        elif op == redo.CUT:
            records.append((op, 9, draw(KEYS)))
        elif op == redo.PRUNE:
            records.append((op, 9, tuple(sorted(draw(st.sets(st.integers(0, 40), min_size=1))))))
        else:
            records.append((op, 9, None, (60, 61), ((1, b"a", None), (2, None, None)), 60))
            records.append((redo.CUT, 9, 60))
    return records


def groups_of(records: list[redo.Record]) -> list[bytes]:
    groups, start = [], 0
    for number, record in enumerate(records, 1):
        data = redo.encode_group(
            [record], epoch=1, start_lsn=start, cts=number, transaction_id=number,
            horizon=number // 2, next_page=20,
        )  # fmt: skip
        groups.append(data)
        start += len(data)
    return groups


@given(leaf_records())
def test_the_writers_page_and_storages_page_are_the_same_bytes(records: list[redo.Record]) -> None:
    mine: Frame | None = None
    stored: Frame | None = None
    for group_data in groups_of(records):
        start = 0 if mine is None else mine.lsn
        (group,) = redo.decode_groups(group_data, start)
        (number,) = [group.cts]
        facts: dict[str, Any] = {
            "lsn": group.end_lsn, "cts": group.cts, "horizon": group.horizon
        }  # fmt: skip
        mine = apply(mine, records[number - 1], **facts)
        # Storage decodes its page from bytes each time, and its record from the log.
        if stored is not None:
            stored = decode(encode(stored), 9)
        stored = apply(stored, group.records[0], **facts)
        assert mine is not None
        assert stored is not None
        assert encode(mine) == encode(stored)
        assert len(encode(mine)) - 64 <= mine.used_bytes
        assert measure(mine) >= len(encode(mine)) - 64


@given(leaf_records(), st.data())
def test_any_cut_or_flipped_byte_of_a_page_is_caught(
    records: list[redo.Record], data: st.DataObject
) -> None:
    frame: Frame | None = None
    for number, record in enumerate(records, 1):
        frame = apply(frame, record, lsn=number, cts=number, horizon=0)
    assert frame is not None
    image = encode(frame)
    assert encode(decode(image, 9)) == image
    with pytest.raises(CorruptData):
        decode(image, 10)
    with pytest.raises(CorruptData):
        decode(image[: data.draw(st.integers(0, len(image) - 1))], 9)
    broken = bytearray(image)
    broken[data.draw(st.integers(0, len(image) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptData):
        decode(bytes(broken), 9)


@given(leaf_records(), st.data())
def test_any_cut_or_flipped_byte_of_a_group_is_caught(
    records: list[redo.Record], data: st.DataObject
) -> None:
    group = redo.encode_group(
        records, epoch=3, start_lsn=500, cts=7, transaction_id=9, horizon=2, next_page=20
    )
    (found,) = redo.decode_groups(group, 500)
    assert found.end_lsn == 500 + len(group)
    assert [tuple(record) for record in found.records] == records
    with pytest.raises(CorruptData):
        list(redo.decode_groups(group[: data.draw(st.integers(1, len(group) - 1))], 500))
    broken = bytearray(group)
    broken[data.draw(st.integers(0, len(group) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptData):
        list(redo.decode_groups(bytes(broken), 500))
    with pytest.raises(CorruptData):
        list(redo.decode_groups(group, 501))


def seen(version: Any, snapshot: int) -> Any:
    while version is not None and version[0] > snapshot:
        version = version[2]
    return None if version is None else version[1]


@given(
    st.sets(st.integers(1, 60), min_size=1),
    st.sets(st.integers(0, 60), min_size=1),
    st.randoms(use_true_random=False),
)
def test_pruning_changes_nothing_that_a_kept_snapshot_sees(
    stamps: set[int], kept: set[int], random: Any
) -> None:
    chain: Any = None
    for cts in sorted(stamps):
        chain = (cts, random.choice([None, b"%d" % cts]), chain)
    snapshots = sorted(kept)
    after = pruned(chain, snapshots)
    for snapshot in (*snapshots, *range(snapshots[-1], 62)):
        assert seen(after, snapshot) == seen(chain, snapshot)
    # And it does prune: at most one version a kept snapshot, and what is newer than all of them.
    count, version = 0, after
    while version is not None:
        count += 1
        version = version[2]
    ordered = sorted(stamps)
    newer = len(ordered) - bisect_left(ordered, snapshots[-1] + 1)
    assert count <= len(snapshots) + newer


@given(st.lists(KEYS, min_size=2, unique=True), st.data())
def test_a_branch_keeps_one_child_more_than_keys(keys: list[int], data: st.DataObject) -> None:
    ordered = sorted(keys)
    frame = apply(
        None,
        (redo.FORMAT, 3, BRANCH, 4, None, None, (ordered[0],), (100, 101)),
        lsn=1, cts=0, horizon=0,
    )  # fmt: skip
    for number, key in enumerate(ordered[1:], 102):
        frame = apply(frame, (redo.INSERT_CHILD, 3, key, number), lsn=2, cts=0, horizon=0)
    assert frame is not None
    assert frame.keys == ordered
    assert len(frame.children) == len(frame.keys) + 1
    gone = data.draw(st.sampled_from(ordered))
    frame = apply(frame, (redo.REMOVE_CHILD, 3, gone), lsn=3, cts=0, horizon=0)
    assert frame is not None
    assert gone not in frame.keys
    assert len(frame.children) == len(frame.keys) + 1
    assert encode(decode(encode(frame), 3)) == encode(frame)
