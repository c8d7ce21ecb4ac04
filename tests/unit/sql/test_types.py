"""Values to text and binary and back; whatever bytes come, an error is all that happens."""

from __future__ import annotations

import math
import re
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.sql import datetimes, numerics, types
from compute.sql.plan import BINARY_FORMAT, LITERAL_FORMAT, TEXT_FORMAT
from compute.sql.rowcode import decoder
from compute.sql.types import BINARY_INPUT, BINARY_OUTPUT, PARSERS, SqlType
from polarless.errors import CallerMistake

_int2, _int4 = st.integers(-(1 << 15), (1 << 15) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
_text = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_numeric = st.one_of(
    st.sampled_from([Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity")]),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40),
).map(numerics.checked)
VALUES: dict[SqlType, st.SearchStrategy[object]] = {
    types.BOOL: st.booleans(),
    types.BYTEA: st.binary(max_size=30),
    types.INT2: _int2,
    types.INT4: _int4,
    types.INT8: st.integers(-(1 << 63), (1 << 63) - 1),
    types.OID: st.integers(0, (1 << 32) - 1),
    types.FLOAT4: st.floats(width=32),
    types.FLOAT8: st.floats(),
    types.NUMERIC: _numeric,
    types.TEXT: _text,
    types.VARCHAR: _text,
    types.BPCHAR: _text.map(lambda text: text.rstrip(" ")),
    types.DATE: st.integers(-2_000_000, 2_000_000) | st.sampled_from(
        [datetimes.DATE_INFINITY, datetimes.DATE_MINUS_INFINITY]
    ),
    types.TIMESTAMP: st.integers(datetimes.TIMESTAMP_MIN, datetimes.TIMESTAMP_MAX)
    | st.sampled_from([datetimes.INFINITY, datetimes.MINUS_INFINITY]),
    types.TIMESTAMPTZ: st.integers(datetimes.TIMESTAMP_MIN, datetimes.TIMESTAMP_MAX),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES, ids=repr)
@given(data=st.data())
def test_text_and_binary_bring_back_the_value(kind: SqlType, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    text = types.to_text(value, kind)
    for back in (
        PARSERS[kind](text),
        BINARY_INPUT[kind](BINARY_OUTPUT[kind](value)),
        types.from_stored(types.to_stored(value), kind),
    ):
        assert same(back, value), (text, back, value)
    assert types.to_text(PARSERS[kind](text), kind) == text


def same(left: object, right: object) -> bool:
    if isinstance(left, (float, Decimal)) and left != left:
        return right != right
    return left == right and type(left) is type(right)


@pytest.mark.parametrize("form", [TEXT_FORMAT, BINARY_FORMAT])
@pytest.mark.parametrize("kind", VALUES, ids=repr)
@given(raw=st.binary(max_size=40))
def test_any_bytes_are_a_value_or_the_callers_mistake(kind: SqlType, form: int, raw: bytes) -> None:
    try:
        value = decoder(kind, form)(raw)
    except CallerMistake:
        return
    types.to_text(value, kind)


@pytest.mark.parametrize("kind", VALUES, ids=repr)
@given(text=st.text(alphabet="0123456789+-.eE_ :TZBC\\xtfnaiinfty²٣", max_size=30))
def test_any_literal_is_a_value_or_the_callers_mistake(kind: SqlType, text: str) -> None:
    try:
        value = decoder(kind, LITERAL_FORMAT)(text)
    except CallerMistake:
        return
    types.to_text(value, kind)


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31, 23, 59, 59)))  # noqa: DTZ001
def test_timestamps_are_the_calendars(moment: datetime) -> None:
    value = datetimes.parse_timestamp(moment.isoformat(" "))
    epoch = datetime(2000, 1, 1)  # noqa: DTZ001
    assert value == (moment - epoch) // timedelta(microseconds=1)
    shown = datetimes.timestamp_text(value)
    assert datetime.fromisoformat(shown.ljust(26, "0") if "." in shown else shown) == moment
    assert datetimes.civil(value // datetimes.DAY_US) == (moment.year, moment.month, moment.day)


@pytest.mark.parametrize("day", ["2019-02-29", "2020-00-01", "2020-01-32", "2020-13-01"])
def test_days_that_do_not_exist(day: str) -> None:
    with pytest.raises(CallerMistake):
        datetimes.parse_date(day)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_text_is_the_shortest(value: float) -> None:
    text = numerics.float8_text(value)
    assert float(text) == value
    # No more digits than Python's repr, which is the shortest, in whatever notation.
    digits = [re.sub(r"e.*|[.-]", "", shown).strip("0") for shown in (text, repr(value))]
    assert digits[0] == digits[1]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float4_text_reads_back(value: float) -> None:
    text = numerics.float4_text(value)
    assert struct.pack("!f", float(text)) == struct.pack("!f", value)


@given(st.integers(), st.integers())
def test_integer_division_truncates(left: int, right: int) -> None:
    if right == 0:
        with pytest.raises(CallerMistake):
            numerics.divide_int(left, right)
        return
    quotient, rest = numerics.divide_int(left, right), numerics.modulo_int(left, right)
    assert quotient * right + rest == left
    assert abs(rest) < abs(right)
    assert rest == 0 or (rest < 0) == (left < 0)


@given(
    st.decimals(min_value=-(10**12), max_value=10**12, places=4),
    st.decimals(min_value=-(10**6), max_value=10**6, places=3),
)
def test_numeric_division_is_exact_to_its_scale(left: Decimal, right: Decimal) -> None:
    if not right:
        return
    quotient = numerics.divide_numeric(left, right)
    scale = numerics.scale_of(quotient)
    assert scale >= 4
    error = abs(numerics.EXACT.subtract(numerics.EXACT.multiply(quotient, right), left))
    assert error <= abs(right) * Decimal(10) ** -scale / 2
    assert len(quotient.as_tuple().digits) >= 16 or not left


def test_edges_of_dates() -> None:
    assert datetimes.days_of(2000, 1, 1) == 0
    assert datetimes.days_of(-4712, 11, 24) is not None
    assert datetimes.date_text(datetimes.days_of(0, 12, 31) or 0) == "0001-12-31 BC"
    assert datetimes.civil((date(1, 1, 1) - date(2000, 1, 1)).days) == (1, 1, 1)
    assert math.isinf(numerics.parse_float("infinity"))
