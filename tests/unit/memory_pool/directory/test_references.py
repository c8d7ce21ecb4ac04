from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory_pool.directory.references import References

ACTIONS = st.tuples(
    st.sampled_from(["add", "remove", "drop"]), st.integers(0, 5), st.integers(0, 3)
)


@given(st.lists(ACTIONS, max_size=60))
def test_both_views_agree_with_a_set_of_pairs(actions: list[tuple[str, int, int]]) -> None:
    references, model = References(), set[tuple[int, int]]()
    for action, page, member in actions:
        others = {m for p, m in model if p == page} - {member}
        if action == "add":
            references.add(page, member)
            model.add((page, member))
        elif action == "remove":
            was_last = (page, member) in model and not others
            assert references.remove(page, member) == was_last
            model.discard((page, member))
        else:
            gone = {p for p, m in model if m == member}
            model = {pair for pair in model if pair[1] != member}
            assert set(references.drop(member)) == gone - {p for p, _ in model}
        references.check()
        for p in range(6):
            assert references.holders(p) == sum(1 << m for q, m in model if q == p)
        for m in range(4):
            assert references.page_count(m) == sum(1 for _, q in model if q == m)


def test_a_page_that_is_not_held_is_nobodys_last() -> None:
    references = References()
    assert not references.remove(1, 0)
    assert references.drop(0) == []
