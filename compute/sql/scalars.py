"""uuid, json, jsonb, time and interval: their values, texts and binary forms.

uuid       its text in small letters          sorts as the bytes do
json       the text as it was given
jsonb      the text as PostgreSQL prints it: keys once, by length and bytes
time       microseconds since midnight
interval   32 bytes: its length in microseconds (30 days a month, 24 hours a day) as a number
           that sorts, then microseconds, days and months. Two intervals of one length that are
           written differently, as 1 month and 30 days, follow each other and are not equal.
"""

from __future__ import annotations

import json
import re
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from compute.sql.environment import current
from compute.sql.mistakes import bad_binary, bad_text
from polarless.errors import CallerMistake

DAY_US: Final = 86_400_000_000
_OFFSET: Final = 1 << 127
_PARTS: Final = struct.Struct(">qii")

# ------------------------------------------------------------------------------------------- uuid

_UUID = re.compile(r"\{?((?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})\}?")


def parse_uuid(text: str) -> str:
    """Raises 22P02."""
    found = _UUID.fullmatch(text.strip())
    if found is None or text.strip().startswith("{") != text.strip().endswith("}"):
        raise bad_text("uuid", text)
    return _uuid_of(found.group(1).replace("-", "").lower())


def _uuid_of(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def uuid_binary(value: str) -> bytes:
    """Sixteen bytes."""
    return bytes.fromhex(value.replace("-", ""))


def uuid_from_binary(data: bytes) -> str:
    """The inverse. Raises 22P03."""
    if len(data) != 16:
        raise bad_binary("uuid")
    return _uuid_of(data.hex())


# ------------------------------------------------------------------------------------------- json


def _no_constant(word: str) -> Any:
    raise ValueError(word)


def _load(text: str, name: str) -> Any:
    try:
        return json.loads(text, parse_float=Number, parse_int=Number, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        error = CallerMistake(
            f"invalid input syntax for type {name}", sqlstate="22P02", detail=_detail(text)
        )
        raise error from None


def _detail(text: str) -> str:
    word = text.strip().split()[0][:40] if text.strip() else ""
    return f'Token "{word}" is invalid.' if word else "The input string ended unexpectedly."


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def load_json(text: str) -> Any:
    """The value of a text that is JSON, numbers as they are written. Raises 22P02."""
    return _load(text, "json")


def jsonb_text(value: Any) -> str:
    """A parsed value as jsonb is printed."""
    return _print(value)


def json_text(value: Any) -> str:
    """A parsed value as json, its keys in their order and its numbers as they were written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k)}: {json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return _print(value)


def json_quoted(text: str) -> str:
    """A text as a JSON string."""
    return _quoted(text)


def sorted_items(value: dict[str, Any]) -> list[tuple[str, Any]]:
    """The items of an object in the order in which jsonb keeps them."""
    return sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0].encode()))


def parse_json(text: str) -> str:
    """The text itself. Raises 22P02."""
    _load(text, "json")
    return text


def parse_jsonb(text: str) -> str:
    """The text as PostgreSQL prints the value. Raises 22P02, 22P05."""
    if "\\u0000" in text:
        raise CallerMistake(
            "unsupported Unicode escape sequence",
            sqlstate="22P05",
            detail="\\u0000 cannot be converted to text.",
        )
    return _print(_load(text, "json"))


def _print(value: Any) -> str:
    if isinstance(value, Number):
        return _number(value)
    if isinstance(value, dict):
        items = sorted_items(value)
        return "{" + ", ".join(f"{_quoted(k)}: {_print(v)}" for k, v in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_print, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    return "null" if value is None else "true" if value else "false"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _number(text: str) -> str:
    if not text.strip("-").isdigit():
        text = format(Decimal(text), "f")
    return "0" if text == "-0" else text


def jsonb_binary(value: str) -> bytes:
    """A version byte and the text."""
    return b"\1" + value.encode()


def jsonb_from_binary(data: bytes) -> str:
    """The inverse. Raises 22P03."""
    if data[:1] != b"\1":
        raise bad_binary("jsonb")
    return parse_jsonb(data[1:].decode())


# ------------------------------------------------------------------------------------------- time

_CLOCK = re.compile(
    r"\s*(\d{1,2}):(\d{2})(?::(\d{2})(\.\d*)?)?\s*(am|pm)?\s*(?:z|[+-]\d{1,2}(?::?\d{2})?)?\s*",
    re.IGNORECASE,
)


def _fraction(text: str | None) -> int:
    return round(Decimal("0" + text) * 1_000_000) if text and text != "." else 0


def parse_clock(text: str) -> int:
    """``hh:mm[:ss[.ffffff]]``. Raises 22007, 22008."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return _clock_in(text)
    hour, minute, second = (int(part or 0) for part in found.group(1, 2, 3))
    half = (found.group(5) or "").lower()
    if half and hour <= 12:
        hour = hour % 12 + (12 if half == "pm" else 0)
    value = ((hour * 60 + minute) * 60 + second) * 1_000_000 + _fraction(found.group(4))
    if hour > 24 or minute > 59 or second > 60 or value > DAY_US:
        raise CallerMistake(f'date/time field value out of range: "{text}"', sqlstate="22008")
    return value


def _clock_in(text: str) -> int:
    """The time in a text that says more: a date, a zone."""
    from compute.sql import dateparse

    parts = dateparse.parse(text, want_clock=True)
    if parts is None or (parts.clock_us is None and not parts.word):
        raise CallerMistake(f'invalid input syntax for type time: "{text}"', sqlstate="22007")
    if parts.word:
        from compute.sql import datetimes

        return datetimes.parse_timestamp(text) % DAY_US
    assert parts.clock_us is not None
    return parts.clock_us


def clock_text(value: int) -> str:
    """As PostgreSQL prints a time."""
    seconds, fraction = divmod(value, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


# --------------------------------------------------------------------------------------- interval


def interval(months: int, days: int, micros: int) -> bytes:
    """A value from its three parts. Raises 22008."""
    if not (-(1 << 31) <= months < 1 << 31 and -(1 << 31) <= days < 1 << 31):
        raise CallerMistake("interval out of range", sqlstate="22008")
    if not -(1 << 63) <= micros < 1 << 63:
        raise CallerMistake("interval out of range", sqlstate="22008")
    length = (months * 30 + days) * DAY_US + micros
    return (length + _OFFSET).to_bytes(16, "big") + _PARTS.pack(micros, days, months)


def parts(value: bytes) -> tuple[int, int, int]:
    """Months, days, microseconds."""
    micros, days, months = _PARTS.unpack_from(value, 16)
    return months, days, micros


# Each unit as (months, days, microseconds).
_UNITS: dict[str, tuple[int, int, int]] = {}
for _names, _unit in (
    ("millennium millennia mil mils", (12_000, 0, 0)),
    ("century centuries c cent", (1200, 0, 0)),
    ("decade decades dec decs", (120, 0, 0)),
    ("year years y yr yrs", (12, 0, 0)),
    ("month months mon mons", (1, 0, 0)),
    ("week weeks w", (0, 7, 0)),
    ("day days d", (0, 1, 0)),
    ("hour hours h hr hrs", (0, 0, 3_600_000_000)),
    ("minute minutes m min mins", (0, 0, 60_000_000)),
    ("second seconds s sec secs", (0, 0, 1_000_000)),
    ("millisecond milliseconds ms msec msecs", (0, 0, 1000)),
    ("microsecond microseconds us usec usecs", (0, 0, 1)),
):
    _UNITS |= dict.fromkeys(_names.split(), _unit)

_PIECE = re.compile(
    r"\s*(?:([+-]?)(\d+):(\d{1,2})(?::(\d{1,2})(\.\d*)?)?"
    r"|([+-]?)(\d+)-(\d{1,2})(?![\d:])"
    r"|([+-]?(?:\d+\.?\d*|\.\d+))\s*([a-zA-Z]*))"
)
_ISO = re.compile(r"([+-]?\d+(?:\.\d+)?)([YMWDHS])")


def parse_interval(text: str) -> bytes:
    """PostgreSQL's and ISO 8601's ways of writing one. Raises 22007."""
    body = text.strip()
    if body[:1] == "P" and len(body) > 1:
        return _parse_iso(text, body[1:])
    lower = body.lower().removeprefix("@").strip()
    ago = lower.endswith(" ago")
    lower = lower.removesuffix(" ago")
    total, position = [Decimal(0)] * 3, 0
    if not lower:
        raise _bad_interval(text)
    while position < len(lower):
        found = _PIECE.match(lower, position)
        if found is None or found.end() == position:
            if lower[position:].strip():
                raise _bad_interval(text)
            break
        position = found.end()
        if found.group(2) is not None:
            hours, minutes, seconds = (int(part or 0) for part in found.group(2, 3, 4))
            micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + _fraction(found.group(5))
            total[2] += -micros if found.group(1) == "-" else micros
        elif found.group(7) is not None:
            months = int(found.group(7)) * 12 + int(found.group(8))
            total[0] += -months if found.group(6) == "-" else months
        else:
            unit = _UNITS.get(found.group(10) or "second")
            if unit is None:
                raise _bad_interval(text)
            _add(total, Decimal(found.group(9)), unit)
    months, days, micros = (int(part) for part in total)
    return interval(-months, -days, -micros) if ago else interval(months, days, micros)


def _add(total: list[Any], count: Any, unit: tuple[int, int, int]) -> None:
    """A fraction of a month is days, a fraction of a day is time."""
    months = count * unit[0]
    whole_months = int(months)
    days = count * unit[1]
    if unit[0] and months != whole_months:
        days += (months - whole_months) * 30
    whole_days = int(days)
    total[0] += whole_months
    total[1] += whole_days
    total[2] += round((days - whole_days) * DAY_US + count * unit[2])


def _parse_iso(text: str, body: str) -> bytes:
    total = [Decimal(0)] * 3
    date, mark, clock = body.partition("T")
    for part, units in (
        (date, {"Y": "year", "M": "month", "W": "week", "D": "day"}),
        (clock, {"H": "hour", "M": "minute", "S": "second"}),
    ):
        if _ISO.sub("", part) or (mark and not clock):
            raise _bad_interval(text)
        for count, letter in _ISO.findall(part):
            if letter not in units:
                raise _bad_interval(text)
            _add(total, Decimal(count), _UNITS[units[letter]])
    return interval(*(int(part) for part in total))


def _bad_interval(text: str) -> CallerMistake:
    return CallerMistake(f'invalid input syntax for type interval: "{text}"', sqlstate="22007")


def interval_text(value: bytes) -> str:
    """As PostgreSQL prints it."""
    style = current.environment.interval_style
    months, days, micros = parts(value)
    if style != "postgres":
        return styled_interval(style, months, days, micros)
    years, months = _divide(months, 12)
    found: list[str] = []
    negative = False
    for count, word in ((years, "year"), (months, "mon"), (days, "day")):
        if count:
            sign = "+" if negative and count > 0 else ""
            found.append(f"{sign}{count} {word}{'' if count == 1 else 's'}")
            negative = count < 0
    if micros or not found:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        sign = "-" if micros < 0 else "+" if negative else ""
        clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        found.append(f"{clock}.{fraction:06}".rstrip("0") if fraction else clock)
    return " ".join(found)


def _divide(value: int, by: int) -> tuple[int, int]:
    """Towards zero."""
    quotient = abs(value) // by
    rest = abs(value) % by
    return (-quotient, -rest) if value < 0 else (quotient, rest)


def rounded_interval(value: bytes, digits: int) -> bytes:
    """Rounded to so many digits of a second."""
    months, days, micros = parts(value)
    unit: int = 10 ** (6 - min(digits, 6))
    rounded = (abs(micros) + unit // 2) // unit * unit
    return interval(months, days, -rounded if micros < 0 else rounded)


def interval_binary(value: bytes) -> bytes:
    """Microseconds, days, months."""
    return value[16:]


def interval_from_binary(data: bytes) -> bytes:
    """The inverse. Raises 22P03."""
    if len(data) != 16:
        raise bad_binary("interval")
    micros, days, months = _PARTS.unpack(data)
    return interval(months, days, micros)


def add(left: bytes, right: bytes) -> bytes:
    """interval + interval."""
    one, two = parts(left), parts(right)
    return interval(one[0] + two[0], one[1] + two[1], one[2] + two[2])


def negative(value: bytes) -> bytes:
    """- interval."""
    months, days, micros = parts(value)
    return interval(-months, -days, -micros)


def subtract(left: bytes, right: bytes) -> bytes:
    """interval - interval."""
    return add(left, negative(right))


def scaled(value: bytes, factor: Any) -> bytes:
    """interval * number."""
    months, days, micros = parts(value)
    number = factor if isinstance(factor, Fraction) else Fraction(str(factor))
    total: list[Any] = [0, 0, round(micros * number)]
    _add(total, number * months, (1, 0, 0))
    _add(total, number * days, (0, 1, 0))
    return interval(*(int(part) for part in total))


def divided(value: bytes, factor: Any) -> bytes:
    """interval / number. Raises 22012."""
    if not factor:
        raise CallerMistake("division by zero", sqlstate="22012")
    return scaled(value, 1 / Fraction(str(factor)))


def between(left: int, right: int) -> bytes:
    """timestamp - timestamp: days and time."""
    days, micros = _divide(left - right, DAY_US)
    return interval(0, days, micros)


# --------------------------------------------------------------------------------- times and dates


def timestamp_plus(value: int, by: bytes) -> int:
    """timestamp + interval: months first, then days, then time. The clock is UTC's."""
    from compute.sql import datetimes

    if value in (datetimes.INFINITY, datetimes.MINUS_INFINITY):
        return value
    months, days, micros = parts(by)
    day, clock = divmod(value, DAY_US)
    if months:
        year, month, of_month = datetimes.civil(day)
        years, month = divmod(month - 1 + months, 12)
        found: int | None = None
        while found is None:
            found = datetimes.days_of(year + years, month + 1, of_month)
            of_month -= 1
        day = found
    result = (day + days) * DAY_US + clock + micros
    if not datetimes.TIMESTAMP_MIN <= result <= datetimes.TIMESTAMP_MAX:
        raise CallerMistake("timestamp out of range", sqlstate="22008")
    return result


def timestamp_minus(value: int, by: bytes) -> int:
    """timestamp - interval."""
    return timestamp_plus(value, negative(by))


def moment_plus(value: int, by: bytes) -> int:
    """timestamptz + interval: months and days by the wall's clock, time by the moment."""
    from compute.sql import datetimes

    if value in (datetimes.INFINITY, datetimes.MINUS_INFINITY):
        return value
    months, days, micros = parts(by)
    if months or days:
        clock = timestamp_plus(datetimes.local(value), interval(months, days, 0))
        value = datetimes.moment(clock)
    return timestamp_plus(value, interval(0, 0, micros)) if micros else value


def moment_minus(value: int, by: bytes) -> int:
    """timestamptz - interval."""
    return moment_plus(value, negative(by))


def date_at(value: int, clock: int) -> int:
    """date + time: a timestamp."""
    return value * DAY_US + clock


def date_plus(value: int, by: bytes) -> int:
    """date + interval: a timestamp."""
    return timestamp_plus(value * DAY_US, by)


def date_minus(value: int, by: bytes) -> int:
    """date - interval: a timestamp."""
    return timestamp_minus(value * DAY_US, by)


def clock_plus(value: int, by: bytes) -> int:
    """time + interval, round the clock."""
    return (value + parts(by)[2]) % DAY_US


def clock_minus(value: int, by: bytes) -> int:
    """time - interval."""
    return (value - parts(by)[2]) % DAY_US


def clock_between(left: int, right: int) -> bytes:
    """time - time."""
    return interval(0, 0, left - right)


def clock_of(value: int) -> int:
    """The time of a timestamp."""
    return value % DAY_US


def clock_interval(value: int) -> bytes:
    """A time as an interval."""
    return interval(0, 0, value)


def interval_clock(value: bytes) -> int:
    """The time of an interval."""
    return parts(value)[2] % DAY_US


_FIELDS: Final = ("year", "month", "day", "hour", "minute", "second")
_SIZES: Final = (12, 1, 0, 3_600_000_000, 60_000_000, 1)


def interval_of_fields(text: str, first: str, last: str) -> bytes:
    """``interval '...' first TO last``: a bare number counts the last; what is finer is cut off."""
    if last not in _FIELDS or first not in _FIELDS:
        # The parser has taken the last word of the text for the field.
        return parse_interval(f"{text} {last}")
    bare = text.strip()
    if re.fullmatch(r"[+-]?\d+(\.\d*)?", bare):
        return parse_interval(f"{bare} {last}")
    if first == "minute" and last == "second" and bare.count(":") == 1:
        bare = f"0:{bare}"
    months, days, micros = parts(parse_interval(bare))
    place = _FIELDS.index(last)
    if place < 2:
        size = _SIZES[place]
        return interval(months - _divide(months, size)[1], 0, 0)
    if place == 2:
        return interval(months, days, 0)
    return interval(months, days, micros - _divide(micros, _SIZES[place])[1])


def styled_interval(style: str, months: int, days: int, micros: int) -> str:
    """As PostgreSQL prints it with another IntervalStyle."""
    years, months = _divide(months, 12)
    size = abs(micros)
    hours, minutes = size // 3_600_000_000, size // 60_000_000 % 60
    seconds = f"{size % 60_000_000 // 1_000_000}"
    if size % 1_000_000:
        seconds += f".{size % 1_000_000:06}".rstrip("0")
    sign = "-" if micros < 0 else ""
    if style == "iso_8601":
        date = [f"{n}{letter}" for n, letter in ((years, "Y"), (months, "M"), (days, "D")) if n]
        clock = [f"{sign}{n}{letter}" for n, letter in ((hours, "H"), (minutes, "M")) if n]
        if seconds != "0":
            clock.append(f"{sign}{seconds}S")
        text = "P" + "".join(date) + ("T" + "".join(clock) if clock else "")
        return text if len(text) > 1 else "PT0S"
    if style == "sql_standard":
        return _standard_interval(years, months, days, micros, f"{hours}:{minutes:02}", seconds)
    words = [(years, "year"), (months, "mon"), (days, "day")]
    clock_words = [(f"{hours}", "hour"), (f"{minutes}", "min"), (seconds, "sec")]
    first = next((n for n, _ in words if n), micros)
    ago = first < 0
    shown = [f"{-n if ago else n} {word}{'' if abs(n) == 1 else 's'}" for n, word in words if n]
    minus = "-" if (micros < 0) != ago and micros else ""
    shown += [
        f"{minus}{text} {word}{'' if text == '1' else 's'}"
        for text, word in clock_words
        if text != "0"
    ]
    return "@ " + (" ".join(shown) or "0") + (" ago" if ago else "")


def _standard_interval(
    years: int, months: int, days: int, micros: int, clock: str, seconds: str
) -> str:
    whole, _, fraction = seconds.partition(".")
    clock = f"{clock}:{whole:0>2}" + (f".{fraction}" if fraction else "")
    date = bool(years or months)
    signs = {n < 0 for n in (years, months, days, micros) if n}
    if not signs:
        return "0"
    if len(signs) == 1 and sum((date, bool(days or micros))) == 1:
        sign = "-" if True in signs else ""
        if date:
            return f"{sign}{abs(years)}-{abs(months)}"
        return f"{sign}{abs(days)} {clock}" if days else f"{sign}{clock}"
    parts = []
    parts.append(f"{'-' if years < 0 or months < 0 else '+'}{abs(years)}-{abs(months)}")
    parts.append(f"{'-' if days < 0 else '+'}{abs(days)}")
    parts.append(f"{'-' if micros < 0 else '+'}{clock}")
    return " ".join(parts)


def jsonb_number(text: str) -> Decimal:
    """A jsonb that is a number, as one. Raises 22023."""
    value = load_json(text)
    if not isinstance(value, Number):
        raise _no_cast(value, "numeric")
    return Decimal(value)


def jsonb_boolean(text: str) -> bool:
    """A jsonb that is true or false, as one. Raises 22023."""
    value = load_json(text)
    if not isinstance(value, bool):
        raise _no_cast(value, "boolean")
    return value


def _no_cast(value: Any, name: str) -> CallerMistake:
    kinds = ((bool, "boolean"), (Number, "numeric"), (str, "string"), (list, "array"))
    kind = next((word for kind, word in kinds if isinstance(value, kind)), "object")
    return CallerMistake(
        f"cannot cast jsonb {'null' if value is None else kind} to type {name}", sqlstate="22023"
    )
