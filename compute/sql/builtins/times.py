"""Functions of dates, times and intervals.

A timestamptz is taken apart as the wall's clock shows it in the session's time zone, or in a zone
that is named.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from compute.sql import datetimes, numerics, scalars, zones
from compute.sql.builtins.signatures import Table, maybe, plain
from compute.sql.datetimes import DAY_US, INFINITY, MINUS_INFINITY
from compute.sql.environment import current
from compute.sql.types import (
    BOOL,
    CLOCK,
    DATE,
    FLOAT8,
    INT4,
    INTERVAL,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    SqlType,
)
from polarless.errors import CallerMistake

_HOUR: Final = 3_600_000_000
_MINUTE: Final = 60_000_000
_SECOND: Final = 1_000_000
# Units as people write them.
_UNITS: Final = {
    alias: name
    for name, aliases in (
        ("microseconds", "microseconds microsecond us usec usecs usecond useconds microsecon"),
        ("milliseconds", "milliseconds millisecond ms msec msecs mseconds msecond"),
        ("second", "second seconds s sec secs"),
        ("minute", "minute minutes m min mins"),
        ("hour", "hour hours h hr hrs"),
        ("day", "day days d"),
        ("week", "week weeks w"),
        ("month", "month months mon mons"),
        ("quarter", "quarter qtr"),
        ("year", "year years y yr yrs"),
        ("decade", "decade decades dec decs"),
        ("century", "century centuries c cent"),
        ("millennium", "millennium millennia mil mils"),
        ("epoch", "epoch"),
        ("julian", "julian"),
        ("isoyear", "isoyear"),
        ("dow", "dow"),
        ("isodow", "isodow"),
        ("doy", "doy"),
        ("timezone", "timezone"),
        ("timezone_hour", "timezone_hour timezone_h"),
        ("timezone_minute", "timezone_minute timezone_m"),
    )
    for alias in aliases.split()
}
_OF_TIME: Final = frozenset({"microseconds", "milliseconds", "second", "minute", "hour"})
_OF_ZONE: Final = frozenset({"timezone", "timezone_hour", "timezone_minute"})


def _unit(word: str, kind: SqlType) -> str:
    found = _UNITS.get(word.lower())
    if found is None:
        raise CallerMistake(
            f'unit "{word.lower()}" not recognized for type {kind.name}', sqlstate="22023"
        )
    return found


def _unsupported(word: str, kind: SqlType) -> CallerMistake:
    return CallerMistake(
        f'unit "{word.lower()}" not supported for type {kind.name}', sqlstate="0A000"
    )


def _iso(days: int) -> tuple[int, int]:
    """ISO year and week of a day number."""
    # The week's Thursday decides whose week it is. 2000-01-01 was a Saturday.
    thursday = days - (days + 5) % 7 + 3
    year = datetimes.civil(thursday)[0]
    first = datetimes.days_of(year, 1, 1)
    assert first is not None
    return year, (thursday - first) // 7 + 1


def _day_part(name: str, days: int) -> Decimal | None:
    """A field of a date; None if it is none of a date's."""
    year, month, day = datetimes.civil(days)
    if name == "day":
        return Decimal(day)
    if name == "month":
        return Decimal(month)
    if name == "year":
        return Decimal(year if year > 0 else year - 1)
    if name == "quarter":
        return Decimal((month - 1) // 3 + 1)
    if name == "dow":
        return Decimal((days + 6) % 7)
    if name == "isodow":
        return Decimal((days + 5) % 7 + 1)
    if name == "doy":
        first = datetimes.days_of(year, 1, 1)
        assert first is not None
        return Decimal(days - first + 1)
    if name == "week":
        return Decimal(_iso(days)[1])
    if name == "isoyear":
        found = _iso(days)[0]
        return Decimal(found if found > 0 else found - 1)
    if name == "decade":
        return Decimal(year // 10)
    if name == "century":
        return Decimal((year + 99) // 100 if year > 0 else -((99 - (year - 1)) // 100))
    if name == "millennium":
        return Decimal((year + 999) // 1000 if year > 0 else -((999 - (year - 1)) // 1000))
    return None


def _fixed(value: int, scale: int) -> Decimal:
    return Decimal(value).scaleb(-scale, numerics.EXACT)


def _time_part(name: str, clock: int) -> Decimal:
    """A field of a time of day."""
    if name == "hour":
        return Decimal(clock // _HOUR)
    if name == "minute":
        return Decimal(clock // _MINUTE % 60)
    within = clock % _MINUTE
    if name == "second":
        return _fixed(within, 6)
    return _fixed(within, 3) if name == "milliseconds" else Decimal(within)


def _extract_date(word: str, days: int) -> Decimal | None:
    name = _unit(word, DATE)
    if name in _OF_TIME or name in _OF_ZONE:
        raise _unsupported(word, DATE)
    if days in (datetimes.DATE_INFINITY, datetimes.DATE_MINUS_INFINITY):
        return _infinite(name, days > 0)
    if name == "epoch":
        return Decimal(days * 86_400 + datetimes.UNIX_EPOCH_US // _SECOND)
    if name == "julian":
        return Decimal(days + 2_451_545)
    return _day_part(name, days)


def _infinite(name: str, positive: bool) -> Decimal | None:
    growing = ("year", "decade", "century", "millennium", "julian", "isoyear", "epoch")
    if name not in growing:
        return None
    return Decimal("Infinity" if positive else "-Infinity")


def _extract_of(kind: SqlType, word: str, clock: int, moment: int | None) -> Decimal | None:
    """Of what the wall's clock shows; ``moment`` is when, if that is known."""
    name = _unit(word, kind)
    if name in _OF_ZONE and moment is None:
        raise _unsupported(word, kind)
    if clock in (INFINITY, MINUS_INFINITY):
        return _infinite(name, clock > 0)
    days, rest = divmod(clock, DAY_US)
    if name in _OF_TIME:
        return _time_part(name, rest)
    if name == "epoch":
        return _fixed((clock if moment is None else moment) + datetimes.UNIX_EPOCH_US, 6)
    if name == "julian":
        if not rest:
            return Decimal(days + 2_451_545)
        part = numerics.divide_numeric(Decimal(rest), Decimal(DAY_US))
        return numerics.add_numeric(Decimal(days + 2_451_545), part)
    if moment is not None and name in _OF_ZONE:
        offset = (clock - moment) // _SECOND
        minutes = int(offset / 60)
        if name == "timezone":
            return Decimal(offset)
        return Decimal(
            int(minutes / 60) if name == "timezone_hour" else minutes - int(minutes / 60) * 60
        )
    return _day_part(name, days)


def _extract_timestamp(word: str, value: int) -> Decimal | None:
    return _extract_of(TIMESTAMP, word, value, None)


def _extract_moment(word: str, value: int) -> Decimal | None:
    return _extract_of(TIMESTAMPTZ, word, datetimes.local(value), value)


def _extract_clock(word: str, value: int) -> Decimal | None:
    name = _unit(word, CLOCK)
    if name in _OF_TIME:
        return _time_part(name, value)
    if name == "epoch":
        return _fixed(value, 6)
    raise _unsupported(word, CLOCK)


def _extract_interval(word: str, value: bytes) -> Decimal | None:
    name = _unit(word, INTERVAL)
    months, days, micros = scalars.parts(value)
    if name == "epoch":
        # A year has 365.25 days here.
        years, rest = _towards_zero(months, 12)
        seconds = years * 31_557_600 + rest * 2_592_000 + days * 86_400
        return _fixed(seconds * _SECOND + micros, 6)
    if name in _OF_TIME:
        sign = -1 if micros < 0 else 1
        found = abs(micros)
        part = Decimal(found // _HOUR) if name == "hour" else _time_part(name, found)
        return numerics.multiply_numeric(part, Decimal(sign)) if part else part
    if name == "day":
        return Decimal(days)
    years, rest = _towards_zero(months, 12)
    sizes = {"year": 1, "decade": 10, "century": 100, "millennium": 1000}
    if name in sizes:
        return Decimal(_towards_zero(years, sizes[name])[0])
    if name == "month":
        return Decimal(rest)
    if name == "quarter":
        return Decimal(_towards_zero(rest, 3)[0] + 1)
    raise _unsupported(word, INTERVAL)


def _towards_zero(value: int, by: int) -> tuple[int, int]:
    quotient = abs(value) // by
    quotient = -quotient if value < 0 else quotient
    return quotient, value - quotient * by


def _as_float(function: Callable[[str, Any], Decimal | None]) -> Callable[[str, Any], float | None]:
    def part(word: str, value: Any) -> float | None:
        found = function(word, value)
        return None if found is None else float(found)

    part.__name__ = f"part{function.__name__}"
    return part


# ---------------------------------------------------------------------------------------- rounding


def _trunc_clock(name: str, clock: int, word: str, kind: SqlType) -> int:
    sizes = {"microseconds": 1, "milliseconds": 1000, "second": _SECOND, "minute": _MINUTE,
             "hour": _HOUR, "day": DAY_US}  # fmt: skip
    if name in sizes:
        return clock // sizes[name] * sizes[name]
    days = clock // DAY_US
    if name == "week":
        return (days - (days + 5) % 7) * DAY_US
    year, month, _ = datetimes.civil(days)
    if name == "month":
        first = datetimes.days_of(year, month, 1)
    elif name == "quarter":
        first = datetimes.days_of(year, (month - 1) // 3 * 3 + 1, 1)
    elif name in ("year", "decade", "century", "millennium"):
        if name == "decade":
            year = year // 10 * 10
        elif name == "century":
            year = (year - 1) // 100 * 100 + 1
        elif name == "millennium":
            year = (year - 1) // 1000 * 1000 + 1
        first = datetimes.days_of(year, 1, 1)
    else:
        raise _unsupported(word, kind)
    assert first is not None
    return first * DAY_US


def _trunc_timestamp(word: str, value: int) -> int:
    name = _unit(word, TIMESTAMP)
    if value in (INFINITY, MINUS_INFINITY):
        return value
    return _trunc_clock(name, value, word, TIMESTAMP)


def _trunc_moment(word: str, value: int) -> int:
    return _trunc_in(current.environment.zone, word, value)


def _trunc_moment_in(word: str, value: int, zone: str) -> int:
    return _trunc_in(zones.find(zone), word, value)


def _trunc_in(zone: zones.Zone, word: str, value: int) -> int:
    name = _unit(word, TIMESTAMPTZ)
    if value in (INFINITY, MINUS_INFINITY):
        return value
    clock = _trunc_clock(name, zone.local(value), word, TIMESTAMPTZ)
    if name in _OF_TIME:
        # The offset stays as it is, also in the hour that comes twice.
        return clock - zone.offset_us(value)
    return zone.moment(clock)


def _trunc_interval(word: str, value: bytes) -> bytes:
    name = _unit(word, INTERVAL)
    months, days, micros = scalars.parts(value)
    sizes = {"microseconds": 1, "milliseconds": 1000, "second": _SECOND, "minute": _MINUTE,
             "hour": _HOUR}  # fmt: skip
    if name in sizes:
        return scalars.interval(months, days, micros - _towards_zero(micros, sizes[name])[1])
    if name == "day":
        return scalars.interval(months, days, 0)
    spans = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200,
             "millennium": 12_000}  # fmt: skip
    if name in spans:
        return scalars.interval(months - _towards_zero(months, spans[name])[1], 0, 0)
    raise _unsupported(word, INTERVAL)


def _bin(stride: bytes, value: int, origin: int) -> int:
    months, days, micros = scalars.parts(stride)
    if months:
        raise CallerMistake(
            "timestamps cannot be binned into intervals containing months or years",
            sqlstate="0A000",
        )
    size = days * DAY_US + micros
    if size <= 0:
        raise CallerMistake("stride must be greater than zero", sqlstate="22008")
    return origin + (value - origin) // size * size


# --------------------------------------------------------------------------------------------- age


def _age(left: int, right: int) -> bytes:
    sign = 1
    if left < right:
        left, right, sign = right, left, -1
    (day1, clock1), (day2, clock2) = divmod(left, DAY_US), divmod(right, DAY_US)
    (y1, m1, d1), (y2, m2, d2) = datetimes.civil(day1), datetimes.civil(day2)
    micros, days, months = clock1 - clock2, d1 - d2, (y1 - y2) * 12 + m1 - m2
    if micros < 0:
        micros, days = micros + DAY_US, days - 1
    while days < 0:
        # The days of the earlier one's month, or for a negative age of the later one's.
        year, month = (y2, m2) if sign > 0 else (y1, m1 - 1 if m1 > 1 else 12)
        if sign < 0 and m1 == 1:
            year -= 1
        days, months = days + _month_days(year, month), months - 1
    return scalars.interval(sign * months, sign * days, sign * micros)


def _month_days(year: int, month: int) -> int:
    first = datetimes.days_of(year, month, 1)
    following = datetimes.days_of(*((year, month + 1, 1) if month < 12 else (year + 1, 1, 1)))
    assert first is not None
    assert following is not None
    return following - first


def _age_moments(left: int, right: int) -> bytes:
    return _age(datetimes.local(left), datetimes.local(right))


def today() -> int:
    """Midnight of the transaction's day, as the wall's clock shows it."""
    return datetimes.local(current.now_us - datetimes.UNIX_EPOCH_US) // DAY_US * DAY_US


# ----------------------------------------------------------------------------------- made of parts


def _make_date(year: int, month: int, day: int) -> int:
    found = datetimes.days_of(year + 1 if year < 0 else year, month, day) if year else None
    if found is None:
        raise CallerMistake(
            f"date field value out of range: {year}-{month:02d}-{day:02d}", sqlstate="22008"
        )
    return found


def _make_time(hour: int, minute: int, second: float) -> int:
    micros = round(second * 1_000_000)
    total = (hour * 60 + minute) * _MINUTE + micros
    fine = 0 <= hour <= 24 and 0 <= minute < 60 and 0 <= second <= 60 and total <= DAY_US
    if not fine:
        raise CallerMistake(
            f"time field value out of range: {hour}:{minute:02d}:{second:02g}", sqlstate="22008"
        )
    return total


def _make_timestamp(year: int, month: int, day: int, hour: int, minute: int, second: float) -> int:
    return _make_date(year, month, day) * DAY_US + _make_time(hour, minute, second)


def _make_moment(
    year: int, month: int, day: int, hour: int, minute: int, second: float, zone: str = ""
) -> int:
    clock = _make_timestamp(year, month, day, hour, minute, second)
    return zones.find(zone).moment(clock) if zone else datetimes.moment(clock)


def make_interval(
    years: int = 0, months: int = 0, weeks: int = 0, days: int = 0, hours: int = 0,
    mins: int = 0, secs: float = 0.0,
) -> bytes:  # fmt: skip
    """make_interval()."""
    micros = hours * _HOUR + mins * _MINUTE + round(secs * 1_000_000)
    return scalars.interval(years * 12 + months, weeks * 7 + days, micros)


INTERVAL_PARTS: Final = ("years", "months", "weeks", "days", "hours", "mins", "secs")


def _to_moment(seconds: float) -> int:
    if seconds != seconds:
        raise CallerMistake("timestamp cannot be NaN", sqlstate="22008")
    if seconds in (float("inf"), float("-inf")):
        return INFINITY if seconds > 0 else MINUS_INFINITY
    found = round(Decimal(repr(seconds)) * 1_000_000) - datetimes.UNIX_EPOCH_US
    if not datetimes.TIMESTAMP_MIN <= found <= datetimes.TIMESTAMP_MAX:
        raise CallerMistake(f'timestamp out of range: "{seconds}"', sqlstate="22008")
    return found


# ------------------------------------------------------------------------------------ justified


def _justify_hours(value: bytes) -> bytes:
    months, days, micros = scalars.parts(value)
    more, micros = _towards_zero(micros, DAY_US)
    days += more
    if days > 0 and micros < 0:
        days, micros = days - 1, micros + DAY_US
    elif days < 0 and micros > 0:
        days, micros = days + 1, micros - DAY_US
    return scalars.interval(months, days, micros)


def _justify_days(value: bytes) -> bytes:
    months, days, micros = scalars.parts(value)
    more, days = _towards_zero(days, 30)
    months += more
    if months > 0 and days < 0:
        months, days = months - 1, days + 30
    elif months < 0 and days > 0:
        months, days = months + 1, days - 30
    return scalars.interval(months, days, micros)


def _justify(value: bytes) -> bytes:
    months, days, micros = scalars.parts(value)
    more, micros = _towards_zero(micros, DAY_US)
    days += more
    more, days = _towards_zero(days, 30)
    months += more
    if months > 0 and (days < 0 or (days == 0 and micros < 0)):
        months, days = months - 1, days + 30
    elif months < 0 and (days > 0 or (days == 0 and micros > 0)):
        months, days = months + 1, days - 30
    if days > 0 and micros < 0:
        days, micros = days - 1, micros + DAY_US
    elif days < 0 and micros > 0:
        days, micros = days + 1, micros - DAY_US
    return scalars.interval(months, days, micros)


# -------------------------------------------------------------------------------------- at a zone


def _to_clock(zone: str, value: int) -> int:
    return value if value in (INFINITY, MINUS_INFINITY) else zones.find(zone).local(value)


def _from_clock(zone: str, value: int) -> int:
    return value if value in (INFINITY, MINUS_INFINITY) else zones.find(zone).moment(value)


def _interval_offset(zone: bytes) -> int:
    months, days, micros = scalars.parts(zone)
    if months or days:
        raise CallerMistake(
            f'interval time zone "{scalars.interval_text(zone)}" must not include months or days',
            sqlstate="22023",
        )
    return micros


def _to_clock_by(zone: bytes, value: int) -> int:
    return value + _interval_offset(zone)


def _from_clock_by(zone: bytes, value: int) -> int:
    return value - _interval_offset(zone)


def overlaps(start1: Any, end1: Any, start2: Any, end2: Any) -> bool | None:
    """(a, b) OVERLAPS (c, d), with PostgreSQL's answers where one of them is NULL."""
    if start1 is None:
        start1, end1 = end1, None
        if start1 is None:
            return None
    elif end1 is not None and start1 > end1:
        start1, end1 = end1, start1
    if start2 is None:
        start2, end2 = end2, None
        if start2 is None:
            return None
    elif end2 is not None and start2 > end2:
        start2, end2 = end2, start2
    if start1 > start2:
        if end2 is None:
            return None
        if start1 < end2:
            return True
        return None if end1 is None else False
    if start1 < start2:
        if end1 is None:
            return None
        if start2 < end1:
            return True
        return None if end2 is None else False
    return None if end1 is None or end2 is None else True


_EXTRACTS: Final = (
    (TIMESTAMPTZ, _extract_moment), (TIMESTAMP, _extract_timestamp), (DATE, _extract_date),
    (INTERVAL, _extract_interval), (CLOCK, _extract_clock),
)  # fmt: skip
_finite = "{0} not in (9223372036854775807, -9223372036854775808)"
_I4: Final = (INT4,) * 5

TABLE: Final[Table] = {
    "extract": tuple(maybe((TEXT, kind), NUMERIC, function) for kind, function in _EXTRACTS),
    "date_part": tuple(
        maybe((TEXT, kind), FLOAT8, _as_float(function)) for kind, function in _EXTRACTS
    ),
    "date_trunc": (
        plain((TEXT, TIMESTAMPTZ), TIMESTAMPTZ, _trunc_moment),
        plain((TEXT, TIMESTAMP), TIMESTAMP, _trunc_timestamp),
        plain((TEXT, INTERVAL), INTERVAL, _trunc_interval),
        plain((TEXT, TIMESTAMPTZ, TEXT), TIMESTAMPTZ, _trunc_moment_in),
    ),
    "date_bin": (
        plain((INTERVAL, TIMESTAMP, TIMESTAMP), TIMESTAMP, _bin),
        plain((INTERVAL, TIMESTAMPTZ, TIMESTAMPTZ), TIMESTAMPTZ, _bin),
    ),
    "age": (
        plain((TIMESTAMPTZ, TIMESTAMPTZ), INTERVAL, _age_moments),
        plain((TIMESTAMP, TIMESTAMP), INTERVAL, _age),
    ),
    "make_date": (plain((INT4, INT4, INT4), DATE, _make_date),),
    "make_time": (plain((INT4, INT4, FLOAT8), CLOCK, _make_time),),
    "make_timestamp": (plain((*_I4, FLOAT8), TIMESTAMP, _make_timestamp),),
    "make_timestamptz": (
        plain((*_I4, FLOAT8), TIMESTAMPTZ, _make_moment),
        plain((*_I4, FLOAT8, TEXT), TIMESTAMPTZ, _make_moment),
    ),
    "make_interval": tuple(
        plain((INT4, INT4, INT4, INT4, INT4, INT4, FLOAT8)[:count], INTERVAL, make_interval)
        for count in range(8)
    ),
    "to_timestamp": (plain((FLOAT8,), TIMESTAMPTZ, _to_moment),),
    "justify_hours": (plain((INTERVAL,), INTERVAL, _justify_hours),),
    "justify_days": (plain((INTERVAL,), INTERVAL, _justify_days),),
    "justify_interval": (plain((INTERVAL,), INTERVAL, _justify),),
    "isfinite": (
        plain((TIMESTAMPTZ,), BOOL, _finite),
        plain((TIMESTAMP,), BOOL, _finite),
        plain((DATE,), BOOL, "{0} not in (2147483647, -2147483648)"),
        plain((INTERVAL,), BOOL, "True"),
    ),
    "timezone": (
        plain((TEXT, TIMESTAMPTZ), TIMESTAMP, _to_clock),
        plain((TEXT, TIMESTAMP), TIMESTAMPTZ, _from_clock),
        plain((INTERVAL, TIMESTAMPTZ), TIMESTAMP, _to_clock_by),
        plain((INTERVAL, TIMESTAMP), TIMESTAMPTZ, _from_clock_by),
    ),
    "date": (
        plain((TIMESTAMP,), DATE, datetimes.timestamp_to_date),
        plain((TIMESTAMPTZ,), DATE, datetimes.moment_to_date),
    ),
}
__all__ = ["INTERVAL_PARTS", "TABLE", "make_interval", "overlaps"]
