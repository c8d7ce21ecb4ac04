"""Dates and timestamps as ints: days and microseconds from 2000-01-01, PostgreSQL's own epoch.

So the binary format of the wire is the value itself, and the order of the ints is the order of
times. A timestamptz is a moment, of UTC; it meets the session's time zone where it is read, printed
or taken apart (`local`, `moment`). Infinities are the ends of 64 (32) bits.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from compute.sql import dateparse
from compute.sql.environment import current
from compute.sql.mistakes import bad_text
from compute.sql.zones import UTC_ZONE, Zone, offset_text
from polarless.errors import CallerMistake

DAY_US: Final = 86_400_000_000
# Microseconds from 1970-01-01 to 2000-01-01, and the day number of the latter.
UNIX_EPOCH_US: Final = 946_684_800_000_000
_EPOCH_ORDINAL: Final = 730_120
assert date(2000, 1, 1).toordinal() == _EPOCH_ORDINAL

INFINITY: Final = (1 << 63) - 1
MINUS_INFINITY: Final = -(1 << 63)
DATE_INFINITY: Final = (1 << 31) - 1
DATE_MINUS_INFINITY: Final = -(1 << 31)
# PostgreSQL: 4713 BC to 294276 AD.
TIMESTAMP_MIN: Final = -211_813_488_000_000_000
TIMESTAMP_MAX: Final = 9_223_371_331_200_000_000 - 1

_PATTERN = re.compile(
    r"\s*(\d{4,6})-(\d{1,2})-(\d{1,2})"
    r"(?:(?:\s+|[Tt])(\d{1,2}):(\d{2})(?::(\d{2})(\.\d*)?)?)?"
    r"\s*(Z|z|UTC|utc|GMT|[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?)?\s*(BC|bc|AD|ad)?\s*"
)


def days_of(year: int, month: int, day: int) -> int | None:
    """Days since 2000-01-01; None if there is no such day. Year 0 is 1 BC."""
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    # 400 years are 146,097 days exactly: move the year into what `date` can do.
    eras, within = divmod(year, 400)
    try:
        ordinal = date(within + 400, month, day).toordinal()
    except ValueError:
        return None
    return ordinal - _EPOCH_ORDINAL + (eras - 1) * 146_097


def civil(days: int) -> tuple[int, int, int]:
    """Year, month, day of a day number."""
    eras, within = divmod(days + _EPOCH_ORDINAL - 1, 146_097)
    found = date.fromordinal(within + 1)
    return found.year + eras * 400, found.month, found.day


def parse_timestamp(text: str, *, name: str = "timestamp", zoned: bool = False) -> int:
    """Text to microseconds. ``zoned``: honour a zone in the text, which timestamp ignores."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        return _special(text, name, zoned=zoned)
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    if found[9] in ("BC", "bc"):
        year = 1 - year
    days = days_of(year, month, day)
    hour, minute, second = int(found[4] or 0), int(found[5] or 0), int(found[6] or 0)
    us = round(float(found[7]) * 1_000_000) if found[7] and found[7] != "." else 0
    in_range = minute < 60 and second <= 60 and (hour < 24 or (hour == 24 and not minute + second))
    if days is None or not in_range:
        raise CallerMistake(f'date/time field value out of range: "{text[:200]}"', sqlstate="22008")
    value = days * DAY_US + (hour * 3600 + minute * 60 + second) * 1_000_000 + us
    if zoned:
        value = value - _offset_us(found[8]) if found[8] else moment(value)
    return _within(value, text)


def _within(value: int, text: str) -> int:
    if not TIMESTAMP_MIN <= value <= TIMESTAMP_MAX:
        raise CallerMistake(f'timestamp out of range: "{text[:200]}"', sqlstate="22008")
    return value


def _special(text: str, name: str, *, zoned: bool) -> int:
    word = text.strip().lower()
    if word in ("infinity", "+infinity"):
        return INFINITY
    if word == "-infinity":
        return MINUS_INFINITY
    if word == "epoch":
        return -UNIX_EPOCH_US
    found = dateparse.parse(text)
    if found is None or (found.date is None and not found.word):
        raise CallerMistake(bad_text(name, text).message, sqlstate="22007")
    if found.word:
        clock = _of_word(found.word, found.clock_us)
    else:
        assert found.date is not None
        days = days_of(*found.date)
        if days is None:
            raise CallerMistake(
                f'date/time field value out of range: "{text[:200]}"', sqlstate="22008"
            )
        clock = days * DAY_US + (found.clock_us or 0)
    if zoned:
        zone = found.zone
        if isinstance(zone, Zone):
            clock = zone.moment(clock)
        else:
            clock = moment(clock) if zone is None else clock - zone
    return _within(clock, text)


def _of_word(word: str, clock_us: int | None) -> int:
    """now, today, tomorrow, yesterday, as the wall's clock shows them."""
    current.volatile = True
    clock = local(current.now_us - UNIX_EPOCH_US)
    if word == "now":
        return clock
    day = clock // DAY_US + {"today": 0, "tomorrow": 1, "yesterday": -1}[word]
    return day * DAY_US + (clock_us or 0)


def local(value: int) -> int:
    """The wall's clock at a moment, in the session's time zone."""
    zone = current.environment.zone
    return value if zone is UTC_ZONE or value in (INFINITY, MINUS_INFINITY) else zone.local(value)


def moment(clock: int) -> int:
    """When the wall's clock shows that, in the session's time zone."""
    zone = current.environment.zone
    return clock if zone is UTC_ZONE or clock in (INFINITY, MINUS_INFINITY) else zone.moment(clock)


def _offset_us(zone: str) -> int:
    if zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    hours = int(digits[:2])
    minutes = int(digits[2:4] or 0)
    seconds = int(digits[4:6] or 0)
    total = (hours * 3600 + minutes * 60 + seconds) * 1_000_000
    return -total if zone[0] == "-" else total


def parse_date(text: str) -> int:
    """Text to days. A time of day in the text is dropped, as PostgreSQL does."""
    value = parse_timestamp(text, name="date")
    return timestamp_to_date(value)


def timestamp_to_date(value: int) -> int:
    """The day of a timestamp."""
    if value == INFINITY:
        return DATE_INFINITY
    if value == MINUS_INFINITY:
        return DATE_MINUS_INFINITY
    return value // DAY_US


def date_to_timestamp(days: int) -> int:
    """Midnight at the beginning of the day."""
    if days == DATE_INFINITY:
        return INFINITY
    if days == DATE_MINUS_INFINITY:
        return MINUS_INFINITY
    return days * DAY_US


def date_to_moment(days: int) -> int:
    """Midnight at the beginning of the day, in the session's time zone."""
    return moment(date_to_timestamp(days))


def moment_to_date(value: int) -> int:
    """The day of a moment, in the session's time zone."""
    return timestamp_to_date(local(value))


def round_timestamp(value: int, digits: int) -> int:
    """Round to so many digits of a second."""
    if digits >= 6 or value in (INFINITY, MINUS_INFINITY):
        return value
    unit: int = 10 ** (6 - max(digits, 0))
    half = unit // 2
    return (value + half) // unit * unit if value >= 0 else -((-value + half) // unit * unit)


def date_text(days: int) -> str:
    """As PostgreSQL prints it with DateStyle ISO."""
    if days == DATE_INFINITY:
        return "infinity"
    if days == DATE_MINUS_INFINITY:
        return "-infinity"
    year, month, day = civil(days)
    if year > 0:
        return f"{year:04d}-{month:02d}-{day:02d}"
    return f"{1 - year:04d}-{month:02d}-{day:02d} BC"


def timestamp_text(value: int, zone: str = "") -> str:
    """As PostgreSQL prints it with DateStyle ISO; ``zone`` is ``+00`` for timestamptz."""
    if value == INFINITY:
        return "infinity"
    if value == MINUS_INFINITY:
        return "-infinity"
    days, rest = divmod(value, DAY_US)
    seconds, us = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    day = date_text(days)
    era = ""
    if day.endswith(" BC"):
        day, era = day[:-3], " BC"
    fraction = f".{us:06d}".rstrip("0") if us else ""
    return f"{day} {hour:02d}:{minute:02d}:{second:02d}{fraction}{zone}{era}"


def moment_text(value: int) -> str:
    """A timestamptz as PostgreSQL prints it in the session's time zone."""
    zone = current.environment.zone
    if zone is UTC_ZONE or value in (INFINITY, MINUS_INFINITY):
        return timestamp_text(value, "+00")
    offset = zone.offset_us(value)
    return timestamp_text(value + offset, offset_text(offset))
