"""Functions of numbers, with PostgreSQL's scales for those of numeric.

exp, ln, log, power and sqrt of a numeric show at least 16 significant digits; how many that is
follows PostgreSQL's own estimates of where the first digit of the result will be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Any, Final

from compute.sql import numerics
from compute.sql.builtins.signatures import Signature, Table, plain
from compute.sql.mistakes import division_by_zero, out_of_range
from compute.sql.types import FLOAT8, INT2, INT4, INT8, INT_BOUNDS, NUMERIC, SqlType
from polarless.errors import CallerMistake

_SCALE_MAX: Final = 1000
_LN10: Final = 2.302585092994046
_LOG10E: Final = 0.434294481903252
_NAN: Final = Decimal("NaN")


# ---------------------------------------------------------------------------------------- doubles


def _out_of_range() -> CallerMistake:
    return CallerMistake("input is out of range", sqlstate="22003")


def _float(function: Callable[..., float], low: float = -math.inf, high: float = math.inf) -> Any:
    """A function of one double whose argument has bounds."""

    def compute(value: float) -> float:
        if value != value:
            return value
        if not low <= value <= high:
            raise _out_of_range()
        try:
            return function(value)
        except (ValueError, ZeroDivisionError):
            raise _out_of_range() from None
        except OverflowError:
            raise CallerMistake("value out of range: overflow", sqlstate="22003") from None

    compute.__name__ = f"float_{getattr(function, '__name__', 'f').strip('<>_')}"
    return compute


def _finite(function: Callable[[float], float]) -> Callable[[float], float]:
    def compute(value: float) -> float:
        if math.isinf(value):
            raise _out_of_range()
        return function(value)

    compute.__name__ = function.__name__
    return compute


def _cot(value: float) -> float:
    tangent = math.tan(value)
    return math.inf if tangent == 0 else 1.0 / tangent


def _hyperbolic(function: Callable[[float], float]) -> Callable[[float], float]:
    def compute(value: float) -> float:
        try:
            return function(value)
        except OverflowError:
            return math.copysign(math.inf, value) if function is math.sinh else math.inf

    compute.__name__ = function.__name__
    return compute


def _atanh(value: float) -> float:
    if value in (-1.0, 1.0):
        return math.copysign(math.inf, value)
    return math.atanh(value)


# The functions of degrees are exact where the angle is: sind(30) is 0.5.
_SIN30: Final = math.sin(math.radians(30))
_ONE_MINUS_COS60: Final = 1.0 - math.cos(math.radians(60))
_ASIN_HALF: Final = math.asin(0.5)
_ACOS_HALF: Final = math.acos(0.5)
_ATAN_ONE: Final = math.atan(1.0)


def _sind_first(value: float) -> float:
    if value <= 30.0:
        return math.sin(math.radians(value)) / _SIN30 / 2.0
    return 1.0 - (1.0 - math.cos(math.radians(90.0 - value))) / _ONE_MINUS_COS60 / 2.0


def _cosd_first(value: float) -> float:
    if value <= 60.0:
        return 1.0 - (1.0 - math.cos(math.radians(value))) / _ONE_MINUS_COS60 / 2.0
    return math.sin(math.radians(90.0 - value)) / _SIN30 / 2.0


def _sind(value: float) -> float:
    value, sign = math.fmod(value, 360.0), 1.0
    if value < 0:
        value, sign = -value, -sign
    if value > 180.0:
        value, sign = 360.0 - value, -sign
    if value > 90.0:
        value = 180.0 - value
    return sign * _sind_first(value)


def _cosd(value: float) -> float:
    value, sign = math.fmod(value, 360.0), 1.0
    value = abs(value)
    if value > 180.0:
        value = 360.0 - value
    if value > 90.0:
        value, sign = 180.0 - value, -sign
    return sign * _cosd_first(value)


_TAND45: Final = _sind_first(45.0) / _cosd_first(45.0)
_COTD45: Final = _cosd_first(45.0) / _sind_first(45.0)


def _quadrant(value: float) -> tuple[float, float]:
    value, sign = math.fmod(value, 360.0), 1.0
    if value < 0:
        value, sign = -value, -sign
    if value > 180.0:
        value, sign = 360.0 - value, -sign
    if value > 90.0:
        value, sign = 180.0 - value, -sign
    return value, sign


def _tand(value: float) -> float:
    value, sign = _quadrant(value)
    below = _cosd_first(value)
    found = sign * (math.inf if below == 0 else _sind_first(value) / below / _TAND45)
    return found or 0.0


def _cotd(value: float) -> float:
    value, sign = _quadrant(value)
    below = _sind_first(value)
    found = sign * (math.inf if below == 0 else _cosd_first(value) / below / _COTD45)
    return found or 0.0


def _asind_first(value: float) -> float:
    if value <= 0.5:
        return math.asin(value) / _ASIN_HALF * 30.0
    return 90.0 - math.acos(value) / _ACOS_HALF * 60.0


def _acosd_first(value: float) -> float:
    if value <= 0.5:
        return 90.0 - math.asin(value) / _ASIN_HALF * 30.0
    return math.acos(value) / _ACOS_HALF * 60.0


def _asind(value: float) -> float:
    return _asind_first(value) if value >= 0 else -_asind_first(-value)


def _acosd(value: float) -> float:
    return _acosd_first(value) if value >= 0 else 90.0 + _asind_first(-value)


def _atand(value: float) -> float:
    return math.atan(value) / _ATAN_ONE * 45.0


def _atan2d(y: float, x: float) -> float:
    return math.atan2(y, x) / _ATAN_ONE * 45.0


def _cbrt(value: float) -> float:
    return math.cbrt(value)


def _degrees(value: float) -> float:
    return value / (math.pi / 180.0)


def _radians(value: float) -> float:
    return value * (math.pi / 180.0)


def _log10(value: float) -> float:
    if value == 0:
        raise CallerMistake("cannot take logarithm of zero", sqlstate="2201E")
    if value < 0:
        raise CallerMistake("cannot take logarithm of a negative number", sqlstate="2201E")
    return math.log10(value)


def _trunc_float(value: float) -> float:
    return float(math.trunc(value)) if math.isfinite(value) else value


# --------------------------------------------------------------------------------------- numerics


def _scale(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return -exponent if isinstance(exponent, int) and exponent < 0 else 0


def _base_10000(value: Decimal) -> tuple[int, list[int]]:
    """Weight and the first two digits in base 10,000."""
    weight = value.adjusted() // 4
    scaled = value.copy_abs().scaleb(-4 * (weight - 1), numerics.EXACT)
    first, second = divmod(int(scaled), 10_000)
    return weight, [first, second]


def _ln_weight(value: Decimal) -> int:
    """PostgreSQL's estimate of the decimal weight of ln(value)."""
    if Decimal("0.9") <= value <= Decimal("1.1"):
        rest = numerics.EXACT.subtract(value, Decimal(1))
        if not rest:
            return 0
        weight, digits = _base_10000(rest)
        return weight * 4 + int(math.log10(digits[0]))
    weight, digits = _base_10000(value)
    exact = value.copy_abs().scaleb(-4 * weight, numerics.EXACT)
    if exact == exact.to_integral_value():
        number, place = digits[0], weight * 4
    else:
        number, place = digits[0] * 10_000 + digits[1], weight * 4 - 4
    found = abs(math.log(number) + place * _LN10)
    return int(math.log10(found)) if found else 0


def _bounded(scale: int) -> int:
    return min(max(scale, 0), _SCALE_MAX)


def _context(digits: int) -> Context:
    return Context(prec=max(digits, 20) + 10, Emax=999_999, Emin=-999_999, traps=[])


def _check_logarithm(value: Decimal) -> None:
    if not value:
        raise CallerMistake("cannot take logarithm of zero", sqlstate="2201E")
    if value < 0:
        raise CallerMistake("cannot take logarithm of a negative number", sqlstate="2201E")


def _ln(value: Decimal) -> Decimal:
    if value.is_nan():
        return value
    _check_logarithm(value)
    if value.is_infinite():
        return value
    scale = _bounded(max(16 - _ln_weight(value), _scale(value)))
    return numerics.rounded(_context(scale + 20).ln(value), scale)


def _log_of(base: Decimal, value: Decimal) -> Decimal:
    if base.is_nan() or value.is_nan():
        return _NAN
    _check_logarithm(base)
    _check_logarithm(value)
    if base.is_infinite():
        return _NAN if value.is_infinite() else Decimal(0)
    if value.is_infinite():
        return value
    result_weight = _ln_weight(value) - _ln_weight(base)
    scale = _bounded(max(16 - result_weight, _scale(base), _scale(value)))
    context = _context(scale + 30)
    below = context.ln(base)
    if not below:
        raise division_by_zero()
    return numerics.rounded(context.divide(context.ln(value), below), scale)


def _log10_numeric(value: Decimal) -> Decimal:
    return _log_of(Decimal(10), value)


def _exp(value: Decimal) -> Decimal:
    if value.is_nan():
        return value
    if value.is_infinite():
        return value if value > 0 else Decimal(0)
    weight = max(min(float(value) * _LOG10E, 2000.0), -2000.0)
    if float(value) > 302_000:
        raise CallerMistake("value overflows numeric format", sqlstate="22003")
    scale = _bounded(max(16 - int(weight), _scale(value)))
    digits = scale + max(int(float(value) * _LOG10E), 0) + 20
    return numerics.checked(numerics.rounded(_context(digits).exp(value), scale))


def _sqrt(value: Decimal) -> Decimal:
    if value.is_nan():
        return value
    if value < 0:
        raise CallerMistake("cannot take square root of a negative number", sqlstate="2201F")
    if value.is_infinite():
        return value
    weight = value.adjusted() // 4 if value else 0
    if weight >= 0:
        half = (weight + 1) * 4 // 2 - 1
    else:
        half = 1 - (1 - weight) * 4 // 2
    scale = _bounded(max(16 - half, _scale(value)))
    return numerics.rounded(_context(scale + max(half, 0) + 10).sqrt(value), scale)


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    if base.is_nan() or exponent.is_nan():
        if exponent == 0 or base == 1:
            return Decimal(1)
        return _NAN
    if not base and exponent < 0:
        raise CallerMistake("zero raised to a negative power is undefined", sqlstate="2201F")
    if base.is_infinite() or exponent.is_infinite():
        return _power_infinite(base, exponent)
    whole = exponent == exponent.to_integral_value()
    if base < 0 and not whole:
        raise CallerMistake(
            "a negative number raised to a non-integer power yields a complex result",
            sqlstate="2201F",
        )
    if not base:
        return numerics.rounded(Decimal(0 if exponent else 1), 16)
    weight = float(exponent) * (math.log(abs(float(base))) if base else 0.0) * _LOG10E
    if weight > numerics.DIGITS_BEFORE_MAX:
        raise CallerMistake("value overflows numeric format", sqlstate="22003")
    if whole and abs(exponent) < 1 << 31:
        scale = _bounded(max(16, _scale(base)))
    else:
        scale = _bounded(max(16 - int(weight), _scale(base), _scale(exponent)))
    digits = scale + max(int(weight), 0) + 20
    context = _context(digits)
    try:
        return numerics.checked(numerics.rounded(context.power(base, exponent), scale))
    except (Overflow, InvalidOperation, DivisionByZero):
        raise CallerMistake("value overflows numeric format", sqlstate="22003") from None


def _power_infinite(base: Decimal, exponent: Decimal) -> Decimal:
    if not exponent or base == 1:
        return Decimal(1)
    if exponent.is_infinite():
        size = base.copy_abs()
        if size == 1:
            return Decimal(1)
        grows = (size > 1) == (exponent > 0)
        return Decimal("Infinity") if grows else Decimal(0)
    if exponent < 0:
        return Decimal(0)
    odd = exponent == exponent.to_integral_value() and int(exponent) % 2 == 1
    return base if base > 0 or odd else base.copy_abs()


def _div(left: Decimal, right: Decimal) -> Decimal:
    if left.is_nan() or right.is_nan():
        return _NAN
    if not right:
        raise division_by_zero()
    if left.is_infinite():
        return _NAN if right.is_infinite() else left if right > 0 else left.copy_negate()
    if right.is_infinite():
        return Decimal(0)
    return numerics.checked(numerics.EXACT.divide_int(left, right)).copy_abs() * (
        1 if (left < 0) == (right < 0) else -1
    )


def _gcd_numeric(left: Decimal, right: Decimal) -> Decimal:
    if not left.is_finite() or not right.is_finite():
        return _NAN
    scale = max(_scale(left), _scale(right))
    a, b = (int(side.scaleb(scale, numerics.EXACT)) for side in (left, right))
    return Decimal(math.gcd(a, b)).scaleb(-scale, numerics.EXACT)


def _lcm_numeric(left: Decimal, right: Decimal) -> Decimal:
    if not left.is_finite() or not right.is_finite():
        return _NAN
    scale = max(_scale(left), _scale(right))
    a, b = (int(side.scaleb(scale, numerics.EXACT)) for side in (left, right))
    return Decimal(math.lcm(a, b)).scaleb(-scale, numerics.EXACT)


def _bounded_int(function: Callable[[int, int], int], kind: SqlType) -> Callable[[int, int], int]:
    def compute(left: int, right: int) -> int:
        found = function(left, right)
        if found > INT_BOUNDS[kind][1]:
            raise out_of_range(kind.name)
        return found

    compute.__name__ = f"{function.__name__}{kind.size}"
    return compute


def _factorial(value: int) -> Decimal:
    if value < 0:
        raise CallerMistake("factorial of a negative number is undefined", sqlstate="22003")
    if value > 32_177:
        raise CallerMistake("value overflows numeric format", sqlstate="22003")
    return Decimal(math.factorial(value))


def _width_bucket(value: Any, low: Any, high: Any, count: int) -> int:
    if count <= 0:
        raise CallerMistake("count must be greater than zero", sqlstate="2201G")
    if value != value or low != low or high != high:
        raise CallerMistake("operand, lower bound, and upper bound cannot be NaN", sqlstate="2201G")
    if math.isinf(low) or math.isinf(high):
        raise CallerMistake("lower and upper bounds must be finite", sqlstate="2201G")
    if low == high:
        raise CallerMistake("lower bound cannot equal upper bound", sqlstate="2201G")
    if low < high:
        if value < low:
            return 0
        return count + 1 if value >= high else int(count * (value - low) / (high - low)) + 1
    if value > low:
        return 0
    return count + 1 if value <= high else int(count * (low - value) / (low - high)) + 1


def _min_scale(value: Decimal) -> int:
    if not value:
        return 0
    return max(-int(value.normalize(numerics.EXACT).as_tuple().exponent), 0)


def _trim_scale(value: Decimal) -> Decimal:
    return numerics.rounded(value, _min_scale(value)) if value.is_finite() else value


def _shift_left(bits: int) -> Callable[[int, int], int]:
    def shift_left(value: int, by: int) -> int:
        return _wrapped(value << (by % bits), bits)

    shift_left.__name__ = f"shift_left{bits}"
    return shift_left


def _shift_right(bits: int) -> Callable[[int, int], int]:
    def shift_right(value: int, by: int) -> int:
        return value >> (by % bits)

    shift_right.__name__ = f"shift_right{bits}"
    return shift_right


def _wrapped(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


_INTS: Final = (INT4, INT8, INT2)


def _one(function: Callable[[float], float]) -> tuple[Signature, ...]:
    return (plain((FLOAT8,), FLOAT8, function),)


TABLE: Final[Table] = {
    "sqrt": (plain((NUMERIC,), NUMERIC, _sqrt),),
    "exp": (plain((NUMERIC,), NUMERIC, _exp),),
    "ln": (plain((NUMERIC,), NUMERIC, _ln),),
    "log": (
        plain((FLOAT8,), FLOAT8, _log10),
        plain((NUMERIC,), NUMERIC, _log10_numeric),
        plain((NUMERIC, NUMERIC), NUMERIC, _log_of),
    ),
    "log10": (plain((FLOAT8,), FLOAT8, _log10), plain((NUMERIC,), NUMERIC, _log10_numeric)),
    "power": (plain((NUMERIC, NUMERIC), NUMERIC, _power),),
    "trunc": (plain((FLOAT8,), FLOAT8, _trunc_float),),
    "cbrt": _one(_cbrt),
    "degrees": _one(_degrees),
    "radians": _one(_radians),
    "pi": (plain((), FLOAT8, repr(math.pi)),),
    **{
        name: _one(_finite(function))
        for name, function in (
            ("sin", math.sin),
            ("cos", math.cos),
            ("tan", math.tan),
            ("cot", _cot),
            ("sind", _sind),
            ("cosd", _cosd),
            ("tand", _tand),
            ("cotd", _cotd),
        )
    },
    **{name: _one(_hyperbolic(getattr(math, name))) for name in ("sinh", "cosh")},
    "tanh": _one(math.tanh),
    "asinh": _one(math.asinh),
    "acosh": _one(_float(math.acosh, 1.0)),
    "atanh": _one(_float(_atanh, -1.0, 1.0)),
    "asin": _one(_float(math.asin, -1.0, 1.0)),
    "acos": _one(_float(math.acos, -1.0, 1.0)),
    "asind": _one(_float(_asind, -1.0, 1.0)),
    "acosd": _one(_float(_acosd, -1.0, 1.0)),
    "atan": _one(math.atan),
    "atand": _one(_atand),
    "atan2": (plain((FLOAT8, FLOAT8), FLOAT8, math.atan2),),
    "atan2d": (plain((FLOAT8, FLOAT8), FLOAT8, _atan2d),),
    "div": (plain((NUMERIC, NUMERIC), NUMERIC, _div),),
    "gcd": (
        *(plain((kind, kind), kind, _bounded_int(math.gcd, kind)) for kind in (INT4, INT8)),
        plain((NUMERIC, NUMERIC), NUMERIC, _gcd_numeric),
    ),
    "lcm": (
        *(plain((kind, kind), kind, _bounded_int(math.lcm, kind)) for kind in (INT4, INT8)),
        plain((NUMERIC, NUMERIC), NUMERIC, _lcm_numeric),
    ),
    "factorial": (plain((INT8,), NUMERIC, _factorial),),
    "width_bucket": (
        plain((FLOAT8, FLOAT8, FLOAT8, INT4), INT4, _width_bucket),
        plain((NUMERIC, NUMERIC, NUMERIC, INT4), INT4, _width_bucket),
    ),
    "scale": (plain((NUMERIC,), INT4, _scale),),
    "min_scale": (plain((NUMERIC,), INT4, _min_scale),),
    "trim_scale": (plain((NUMERIC,), NUMERIC, _trim_scale),),
}
# Operators of integers, by their symbol.
BITS: Final[Table] = {
    **{
        symbol: tuple(plain((kind, kind), kind, f"{{0}} {python} {{1}}") for kind in _INTS)
        for symbol, python in (("&", "&"), ("|", "|"), ("#", "^"))
    },
    "<<": tuple(
        plain((kind, INT4), kind, _shift_left(64 if kind is INT8 else 32)) for kind in _INTS
    ),
    ">>": tuple(
        plain((kind, INT4), kind, _shift_right(64 if kind is INT8 else 32)) for kind in _INTS
    ),
    "~": tuple(plain((kind,), kind, "~{0}") for kind in _INTS),
}
__all__ = ["BITS", "TABLE"]
