"""Numbers as PostgreSQL computes and prints them: integer division, numeric scales, floats.

A numeric is a `Decimal` whose exponent is minus its display scale. Addition, subtraction and
multiplication are exact; the scale of a quotient follows PostgreSQL's rule (at least 16 significant
digits), so AVG prints the same digits. The operators and ``abs`` of `Decimal` itself round to 28
digits and are used nowhere: `EXACT` and the ``copy_`` methods are.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final

import numpy as np

from compute.sql.mistakes import bad_binary, bad_text, division_by_zero, out_of_range
from polarless.errors import CallerMistake

# Beyond any number of digits that an exact operation on two admitted numerics can give.
EXACT: Final = Context(prec=300_000, rounding=ROUND_HALF_UP, Emax=999_999, Emin=-999_999, traps=[])
DIGITS_BEFORE_MAX: Final = 131_072
SCALE_MAX: Final = 16_383
_ONE: Final = Decimal(1)

_NUMBER = re.compile(
    r"[ \t\n\v\f\r]*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?[ \t\n\v\f\r]*"
)
_WORDS: Final = {
    "nan": Decimal("NaN"),
    "infinity": Decimal("Infinity"),
    "inf": Decimal("Infinity"),
    "+infinity": Decimal("Infinity"),
    "+inf": Decimal("Infinity"),
    "-infinity": Decimal("-Infinity"),
    "-inf": Decimal("-Infinity"),
}


def parse_numeric(text: str) -> Decimal:
    """Text to a numeric with the scale that the text shows."""
    if not text.isascii() or _NUMBER.fullmatch(text) is None:
        word = _WORDS.get(text.strip().lower())
        if word is None:
            raise bad_text("numeric", text)
        return word
    return checked(Decimal(text.strip()))


def checked(value: Decimal) -> Decimal:
    """``value`` without a positive exponent. Raises 22003 if it has too many digits."""
    if not value.is_finite():
        return value
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if not value:
        # Zero has no sign in a numeric.
        value = value.copy_abs()
    if value and value.adjusted() >= DIGITS_BEFORE_MAX:
        raise CallerMistake("value overflows numeric format", sqlstate="22003")
    if exponent > 0:
        return value.quantize(_ONE, context=EXACT)
    if exponent < -SCALE_MAX:
        return rounded(value, SCALE_MAX)
    return value


def rounded(value: Decimal, scale: int) -> Decimal:
    """Half away from zero at ``scale`` digits after the point."""
    if not value.is_finite():
        return value
    result = value.quantize(Decimal((0, (1,), -scale)), context=EXACT)
    return result or result.copy_abs()


def fit_numeric(value: Decimal, typmod: int) -> Decimal:
    """``value`` as a numeric(p, s). Raises 22003."""
    precision, scale = (typmod - 4) >> 16, (typmod - 4) & 0xFFFF
    if value.is_nan():
        return value
    result = rounded(value, scale)
    if not result.is_finite() or (result and result.adjusted() >= precision - scale):
        raise CallerMistake(
            "numeric field overflow",
            sqlstate="22003",
            detail=f"A field with precision {precision}, scale {scale} must round to an absolute "
            f"value less than 10^{precision - scale}.",
        )
    return result


def numeric_text(value: Decimal) -> str:
    """As PostgreSQL prints it."""
    if value.is_nan():
        return "NaN"
    return format(value, "f")


def add_numeric(left: Decimal, right: Decimal) -> Decimal:
    """Exact, unless an infinity takes part."""
    return checked(EXACT.add(left, right))


def subtract_numeric(left: Decimal, right: Decimal) -> Decimal:
    """Exact, unless an infinity takes part."""
    return checked(EXACT.subtract(left, right))


def multiply_numeric(left: Decimal, right: Decimal) -> Decimal:
    """Exact, unless an infinity takes part."""
    return checked(EXACT.multiply(left, right))


def negated(value: Any) -> Any:
    """Unary minus of any number, exact."""
    if isinstance(value, Decimal):
        return value.copy_negate() if value else value
    return -value


def _weight(value: Decimal) -> tuple[int, int]:
    """Weight and first digit of ``value`` in base 10,000, which is how PostgreSQL stores it."""
    if not value:
        return 0, 0
    weight = value.adjusted() // 4
    first = int(value.copy_abs().scaleb(-4 * weight, EXACT))
    return weight, first


def divide_numeric(left: Decimal, right: Decimal) -> Decimal:
    """The quotient with PostgreSQL's scale (select_div_scale). Raises 22012."""
    if left.is_nan() or right.is_nan():
        return Decimal("NaN")
    if not right:
        raise division_by_zero()
    if not left.is_finite() or not right.is_finite():
        if left.is_infinite() and right.is_infinite():
            return Decimal("NaN")
        return EXACT.divide(left, right) if left.is_infinite() else Decimal(0)
    left_weight, left_first = _weight(left)
    right_weight, right_first = _weight(right)
    weight = left_weight - right_weight - (1 if left_first <= right_first else 0)
    scale = min(max(16 - 4 * weight, scale_of(left), scale_of(right), 0), 1000)
    # Integer arithmetic, so that the one rounding is exact.
    shift = scale + scale_of(right) - scale_of(left)
    numerator, denominator = unscaled(left), unscaled(right)
    if shift >= 0:
        numerator *= 10**shift
    else:
        denominator *= 10**-shift
    quotient, rest = divmod(abs(numerator), abs(denominator))
    if 2 * rest >= abs(denominator):
        quotient += 1
    if (numerator < 0) != (denominator < 0):
        quotient = -quotient
    return Decimal(quotient).scaleb(-scale, EXACT)


def modulo_numeric(left: Decimal, right: Decimal) -> Decimal:
    """The rest of a division that truncates. Raises 22012."""
    if left.is_nan() or right.is_nan():
        return Decimal("NaN")
    if not right:
        raise division_by_zero()
    if left.is_infinite():
        return Decimal("NaN")
    if right.is_infinite():
        return left
    return EXACT.remainder(left, right)


def scale_of(value: Decimal) -> int:
    """Digits after the point."""
    exponent = value.as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0


def unscaled(value: Decimal) -> int:
    """The digits of ``value`` as an int."""
    return int(value.scaleb(scale_of(value), EXACT))


def divide_int(left: int, right: int) -> int:
    """Integer division truncates toward zero. Raises 22012."""
    if right == 0:
        raise division_by_zero()
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def modulo_int(left: int, right: int) -> int:
    """The rest has the sign of the left side. Raises 22012."""
    if right == 0:
        raise division_by_zero()
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def float_to_int(value: float | Decimal, low: int, high: int, name: str) -> int:
    """Round half to even (floats) or away from zero (numerics), as casts do. Raises 22003."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise CallerMistake(f"cannot convert {value} to {name}", sqlstate="0A000")
        result = int(rounded(value, 0))
    else:
        if not math.isfinite(value):
            raise out_of_range(name)
        result = round(value)
    if not low <= result <= high:
        raise out_of_range(name)
    return result


def checked_float(value: float, left: float, right: float) -> float:
    """``value``, computed of the other two: an infinity that none of them was is an overflow."""
    if math.isinf(value) and not (math.isinf(left) or math.isinf(right)):
        raise CallerMistake("value out of range: overflow", sqlstate="22003")
    return value


def divide_float(left: float, right: float) -> float:
    """Raises 22012."""
    if right == 0.0:
        if left != left:
            return left
        raise division_by_zero()
    return checked_float(left / right, left, right)


def to_float4(value: float) -> float:
    """The nearest float of four bytes. Raises 22003."""
    try:
        return float(struct.unpack("!f", struct.pack("!f", value))[0])
    except OverflowError:
        raise out_of_range("real") from None


def to_float(value: Decimal | int) -> float:
    """A numeric or int as a float. Raises 22003."""
    try:
        return float(value)
    except OverflowError:
        raise out_of_range("double precision") from None


def float_to_numeric(value: float) -> Decimal:
    """15 significant digits, as PostgreSQL takes."""
    if not math.isfinite(value):
        return Decimal(value)
    return checked(Decimal(f"{value:.15g}"))


def parse_float(text: str, name: str = "double precision") -> float:
    """Text to a float. Raises 22P02 and 22003."""
    stripped = text.strip()
    if "_" in stripped or not stripped.isascii():
        raise bad_text(name, text)
    try:
        value = float(stripped)
    except ValueError:
        raise bad_text(name, text) from None
    if math.isinf(value) and stripped.lstrip("+-")[:1] not in ("i", "I"):
        raise CallerMistake(f'"{text}" is out of range for type {name}', sqlstate="22003")
    if not value and any(digit in "123456789" for digit in stripped.lower().partition("e")[0]):
        raise CallerMistake(f'"{text}" is out of range for type {name}', sqlstate="22003")
    return value


def float8_text(value: float) -> str:
    """The shortest digits that read back the same, with PostgreSQL's choice of notation."""
    return _float_text(value, repr(value), exponent_min=15)


def float4_text(value: float) -> str:
    """As `float8_text`, for four bytes."""
    if not math.isfinite(value):
        return _float_text(value, "", exponent_min=6)
    text = np.format_float_scientific(np.float32(value), unique=True, trim="-")
    return _float_text(value, text, exponent_min=6)


def _float_text(value: float, shortest: str, *, exponent_min: int) -> str:
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    point = len(text) + exponent - 1
    text = text.rstrip("0")
    minus = "-" if sign else ""
    if -4 <= point < exponent_min:
        if point < 0:
            return f"{minus}0.{'0' * (-point - 1)}{text}"
        whole, fraction = text[: point + 1].ljust(point + 1, "0"), text[point + 1 :]
        return f"{minus}{whole}.{fraction}" if fraction else f"{minus}{whole}"
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}e{'-' if point < 0 else '+'}{abs(point):02d}"


def numeric_to_binary(value: Decimal) -> bytes:
    """PostgreSQL's binary numeric: count, weight, sign, scale, digits in base 10,000."""
    if not value.is_finite():
        sign = 0xC000 if value.is_nan() else 0xD000 if value > 0 else 0xF000
        return struct.pack("!HhHH", 0, 0, sign, 0 if value.is_nan() else 32)
    scale = scale_of(value)
    whole, _, fraction = format(value.copy_abs(), "f").partition(".")
    whole = whole.zfill(-(-len(whole) // 4) * 4)
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    text = whole + fraction
    digits = [int(text[i : i + 4]) for i in range(0, len(text), 4)]
    weight = len(whole) // 4 - 1
    while digits and digits[0] == 0:
        del digits[0]
        weight -= 1
    while digits and digits[-1] == 0:
        digits.pop()
    if not digits:
        weight = 0
    sign = 0x4000 if value < 0 else 0
    return struct.pack(f"!HhHH{len(digits)}H", len(digits), weight, sign, scale, *digits)


def numeric_from_binary(data: bytes) -> Decimal:
    """The inverse of `numeric_to_binary`. Raises 22P03."""
    if len(data) < 8:
        raise bad_binary("numeric")
    count, weight, sign, scale = struct.unpack_from("!HhHH", data)
    if len(data) != 8 + 2 * count or scale > SCALE_MAX:
        raise bad_binary("numeric")
    if sign in (0xC000, 0xD000, 0xF000):
        return Decimal({0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}[sign])
    digits = struct.unpack_from(f"!{count}H", data, 8)
    if sign not in (0, 0x4000) or any(digit > 9999 for digit in digits):
        raise bad_binary("numeric")
    number = int("".join(f"{digit:04d}" for digit in digits) or "0")
    try:
        value = Decimal(number).scaleb(4 * (weight + 1 - count), EXACT)
    except (InvalidOperation, Overflow, Inexact):
        raise bad_binary("numeric") from None
    return rounded(value.copy_negate() if sign else value, scale)
