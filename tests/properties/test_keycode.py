"""Key order is value order, and decoding is the inverse of encoding."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polarless.kernel import keycode

INTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(), st.integers(-2000, 2000))
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
TEXTS = st.one_of(st.text(), st.text(alphabet="\0\x01a\u00ff\uffff\U0001f600"))
BYTES = st.one_of(st.binary(), st.binary().map(lambda b: b.replace(b"a", b"\0\xff")))
DECIMALS = st.one_of(
    st.decimals(allow_nan=False),
    st.decimals(allow_nan=False, places=2, min_value=-99, max_value=99),
)
COLUMN_TYPES = (st.booleans(), INTS, FLOATS, TEXTS, BYTES, DECIMALS)
COLUMNS = [st.one_of(st.none(), column) for column in COLUMN_TYPES]


class Ordered:
    """A value in the order of an index: None last, NaN before it."""

    def __init__(self, value: Any) -> None:
        nan = isinstance(value, float) and math.isnan(value)
        self.key = (2, 0) if value is None else (1, 0) if nan else (0, value)

    def __lt__(self, other: Ordered) -> bool:
        return bool(self.key < other.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and bool(self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)


def ordered(values: tuple[Any, ...]) -> tuple[Ordered, ...]:
    return tuple(map(Ordered, values))


@st.composite
def two_keys_of_one_tree(draw: st.DrawFn) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    columns = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4))
    first = tuple(draw(column) for column in columns)
    # A common beginning makes the later columns matter.
    shared = draw(st.integers(0, len(columns)))
    second = first[:shared] + tuple(draw(column) for column in columns[shared:])
    return first, second[: draw(st.integers(max(1, shared), len(columns)))]


@given(two_keys_of_one_tree())
def test_key_order_is_value_order(keys: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    a, b = keys
    encoded_a, encoded_b = keycode.encode(a), keycode.encode(b)
    assert (encoded_a < encoded_b) == (ordered(a) < ordered(b))
    assert (encoded_a == encoded_b) == (ordered(a) == ordered(b))


@given(two_keys_of_one_tree())
def test_decode_is_the_inverse(keys: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    decoded = keycode.decode(keycode.encode(keys[0]))
    assert ordered(decoded) == ordered(keys[0])
    assert [type(value) for value in decoded] == [type(value) for value in keys[0]]


@given(two_keys_of_one_tree(), st.integers(1, 4))
def test_prefix_end_bounds_exactly_the_keys_with_that_prefix(
    keys: tuple[tuple[Any, ...], tuple[Any, ...]], length: int
) -> None:
    prefix, key = keys[0][:length], keys[1]
    low, encoded = keycode.encode(prefix), keycode.encode(key)
    inside = low <= encoded < keycode.prefix_end(low)
    assert inside == (ordered(key[: len(prefix)]) == ordered(prefix))


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    from polarless.errors import CorruptData

    try:
        keycode.decode(data)
    except CorruptData:
        pass


@given(DECIMALS, DECIMALS)
def test_decimals_alone(a: Decimal, b: Decimal) -> None:
    assert (keycode.encode_decimal(a) < keycode.encode_decimal(b)) == (a < b)
