"""Functions of our own that every query may call: numerics as exact text, and keys.

number_key(text)          bytes that sort and compare as the number does
number_plain(text)        the number without trailing zeros: equal numbers are equal texts
number_divide(a, b)       the quotient with PostgreSQL's scale
number_sum(list)          the exact sum, NULLs left out
number_spread(list, how)  variance and standard deviation
texts_join(list, between) the texts that are not NULL
printed_key(text, oid)    a text or bytes that sorts as the printed value does
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

from compute.sql import numerics, scalars
from compute.sql.analytics.leaves import Function, guarded
from compute.sql.builtins import jsons
from compute.sql.types import BY_OID, INTERVAL, PARSERS
from polarless.kernel import keycode

_ROOT: Final = Context(prec=60)


def _number_key(text: str | None) -> bytes | None:
    return None if text is None else keycode.encode_decimal(Decimal(text))


def _number_plain(text: str | None) -> str | None:
    if text is None:
        return None
    value = Decimal(text)
    if not value.is_finite():
        return text
    plain = numerics.numeric_text(value)
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _number_divide(left: str | None, right: str | None) -> str | None:
    if left is None or right is None:
        return None
    return numerics.numeric_text(numerics.divide_numeric(Decimal(left), Decimal(right)))


def _number_sum(items: list[str | None] | None) -> str | None:
    total: Decimal | None = None
    for item in items or ():
        if item is not None:
            value = Decimal(item)
            total = value if total is None else numerics.add_numeric(total, value)
    return None if total is None else numerics.numeric_text(total)


def _number_spread(items: list[str | None] | None, how: str) -> str | None:
    """As PostgreSQL: (N * sum of squares - square of the sum) / (N * (N - 1) or N * N)."""
    values = [Decimal(item) for item in items or () if item is not None]
    count = len(values)
    sample = how.endswith("samp")
    if count == 0 or (sample and count == 1):
        return None
    if any(not value.is_finite() for value in values):
        return "NaN"
    total, squares = Decimal(0), Decimal(0)
    for value in values:
        total = numerics.add_numeric(total, value)
        squares = numerics.add_numeric(squares, numerics.multiply_numeric(value, value))
    upper = numerics.subtract_numeric(
        numerics.multiply_numeric(Decimal(count), squares), numerics.multiply_numeric(total, total)
    )
    if upper <= 0:
        return "0"
    lower = Decimal(count * (count - 1 if sample else count))
    variance = numerics.divide_numeric(upper, lower)
    if not how.startswith("stddev"):
        return numerics.numeric_text(variance)
    # 16 significant digits at least, and no fewer after the point than the variance has.
    root = variance.sqrt(_ROOT)
    scale = max(16 - max(root.adjusted(), 0) - 1, numerics.scale_of(variance), 0)
    return numerics.numeric_text(numerics.rounded(root, scale))


def _interval_sum(items: list[str | None] | None) -> str | None:
    total: bytes | None = None
    for item in items or ():
        if item is not None:
            value = scalars.parse_interval(item)
            total = value if total is None else scalars.add(total, value)
    return None if total is None else scalars.interval_text(total)


def _interval_average(items: list[str | None] | None) -> str | None:
    known = [item for item in items or () if item is not None]
    total = _interval_sum(list(known))
    if total is None:
        return None
    return scalars.interval_text(scalars.divided(scalars.parse_interval(total), len(known)))


def _texts_join(items: list[str | None] | None, separator: str | None) -> str | None:
    found = [item for item in items or () if item is not None]
    return (separator or "").join(found) if found else None


def _printed_key(text: str | None, oid: int) -> bytes | None:
    if text is None:
        return None
    kind = BY_OID.get(oid)
    key = SORT_KEYS.get(oid)
    if kind is None or key is None:
        return text.encode()
    return key(PARSERS[kind](text))


# Types whose text does not sort as the value does: oid -> bytes of a value.
SORT_KEYS: dict[int, Callable[[Any], bytes]] = {
    # The length alone: 1 month and 30 days are equal.
    INTERVAL.oid: lambda value: bytes(value[:16]),
}


def _made(name: str, python: Callable[..., Any], takes: tuple[str, ...], gives: str) -> Function:
    return Function(name, guarded(python, len(takes)), takes, gives)


COMMON: Final = (
    _made("number_key", _number_key, ("VARCHAR",), "BLOB"),
    _made("number_plain", _number_plain, ("VARCHAR",), "VARCHAR"),
    _made("number_divide", _number_divide, ("VARCHAR", "VARCHAR"), "VARCHAR"),
    _made("number_sum", _number_sum, ("VARCHAR[]",), "VARCHAR"),
    _made("number_spread", _number_spread, ("VARCHAR[]", "VARCHAR"), "VARCHAR"),
    _made("texts_join", _texts_join, ("VARCHAR[]", "VARCHAR"), "VARCHAR"),
    _made("json_join", jsons.join, ("VARCHAR[]", "VARCHAR", "BOOLEAN"), "VARCHAR"),
    _made("json_pairs", jsons.pairs, ("VARCHAR[]", "VARCHAR[]", "BOOLEAN"), "VARCHAR"),
    _made("interval_sum", _interval_sum, ("VARCHAR[]",), "VARCHAR"),
    _made("interval_average", _interval_average, ("VARCHAR[]",), "VARCHAR"),
    _made("printed_key", _printed_key, ("VARCHAR", "INTEGER"), "BLOB"),
)
