"""Pages as of a mark, while records are folded and dropped underneath."""

from __future__ import annotations

from polarless.kernel import page, redo
from storage.backends.memory import MemoryPages
from storage.pages.materialize import Pages
from storage.pages.pending import Pending

PAGE = 7


def group(start: int, record: redo.Record, cts: int) -> bytes:
    return redo.encode_group(
        [record], epoch=1, start_lsn=start, cts=cts, transaction_id=cts, horizon=0, next_page=100
    )


def rows(answer: tuple[object, ...]) -> set[object]:
    assert answer[0] == "page"
    image = answer[1]
    assert isinstance(image, bytes)
    return set(page.decode(image, PAGE).rows)


def test_an_image_from_before_a_fold_is_not_built_upon_while_its_records_are_still_there() -> None:
    store, pending = MemoryPages(), Pending(0, 0, 0)
    pages = Pages(store, pending, cache_bytes_max=1 << 20)
    end = 0
    records: list[redo.Record] = [
        (redo.FORMAT, PAGE, page.LEAF, PAGE, None, None, (), ()),
        (redo.PUT, PAGE, 1, b"one"),
        (redo.PUT, PAGE, 2, b"two"),
        (redo.PUT, PAGE, 3, b"three"),
    ]
    ends = []
    for number, record in enumerate(records):
        data = group(end, record, number + 1)
        pending.feed(end, data)
        end += len(data)
        ends.append(end)
        pending.step(1 << 20)
        if number == 1:
            # Kept: the page as of the first row.
            assert rows(pages.read(PAGE, end)) == {1}
        if number == 2:
            # A fold stores both rows; its records are passed over, and dropped a little later.
            answer = Pages(store, pending, cache_bytes_max=0).read(PAGE, end)
            image = answer[1]
            assert isinstance(image, bytes)
            store.stage([(PAGE, image)])
            store.commit(b"")
            plan = pending.plan()
            pending.extend_plan(plan, end, pages_max=10, groups_max=10)
            pending.folded_to(plan)
    assert rows(pages.read(PAGE, end)) == {1, 2, 3}


def test_the_lsns_of_pages_are_those_of_the_images_that_would_be_read() -> None:
    store, pending = MemoryPages(), Pending(0, 0, 0)
    pages = Pages(store, pending, cache_bytes_max=0)
    records: list[redo.Record] = [
        (redo.FORMAT, PAGE, page.LEAF, PAGE, None, None, (), ()),
        (redo.PUT, PAGE, 1, b"one"),
        (redo.PUT, PAGE, 2, b"two"),
        (redo.FREE, PAGE),
    ]
    ends = [0]
    for number, record in enumerate(records):
        pending.feed(ends[-1], data := group(ends[-1], record, number + 1))
        ends.append(ends[-1] + len(data))
    pending.step(1 << 20)
    _, formatted, one, two, freed = ends
    expected = {formatted - 1: 0, formatted: formatted, two - 1: one, two: two, freed: 0}
    assert {as_of: pages.lsns([PAGE], as_of)[0] for as_of in expected} == expected
    assert pages.lsns([PAGE, PAGE + 1], one) == [one, 0]

    image = pages.read(PAGE, one)[1]
    assert isinstance(image, bytes)
    store.stage([(PAGE, image)])
    store.commit(b"")
    # Stored, and the loop does not know yet; then it does.
    for reported in (False, True):
        if reported:
            plan = pending.plan()
            pending.extend_plan(plan, one, pages_max=10, groups_max=10)
            pending.folded_to(plan)
        expected = {formatted: 0, one: one, two: two, freed: 0}
        assert {as_of: pages.lsns([PAGE], as_of)[0] for as_of in expected} == expected
