"""to_char(), to_number(), to_date(), to_timestamp(text, text): values by a picture of their text.

Of dates the fields that people use are known; what is none of them stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from compute.sql import datetimes, numerics, scalars
from compute.sql.builtins.signatures import Table, maybe
from compute.sql.builtins.times import _iso
from compute.sql.dateparse import DAY_NAMES, MONTH_NAMES, MONTHS
from compute.sql.datetimes import DAY_US
from compute.sql.environment import current
from compute.sql.types import (
    DATE,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
)
from polarless.errors import CallerMistake

_ROMAN: Final = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
_FIELDS: Final = (
    "Y,YYY", "YYYY", "YYY", "YY", "Y", "IYYY", "IYY", "IY", "I", "MONTH", "Month", "month", "MON",
    "Mon", "mon", "MM", "DAY", "Day", "day", "DY", "Dy", "dy", "DDD", "IDDD", "DD", "ID", "D",
    "WW", "IW", "W", "CC", "J", "Q", "RM", "rm", "HH24", "HH12", "HH", "MI", "SSSSS", "SSSS", "SS",
    "MS", "US", "FF1", "FF2", "FF3", "FF4", "FF5", "FF6", "AM", "PM", "am", "pm", "A.M.", "P.M.",
    "a.m.", "p.m.", "TZH", "TZM", "TZ", "tz", "OF", "BC", "AD", "bc", "ad", "B.C.", "A.D.",
    "b.c.", "a.d.",
)  # fmt: skip
_PICTURE = re.compile(
    r"(FM|fm)?(?:"
    + "|".join(
        re.escape(name)
        for name in sorted(
            {*_FIELDS, *(field.lower() for field in _FIELDS)}, key=lambda name: -len(name)
        )
    )
    + r')(TH|th)?|"(?:[^"\\]|\\.)*"|FX|TM|.',
    re.DOTALL,
)
_NAMED: Final = frozenset(_FIELDS)


class _Moment:
    """What a picture is filled with. An interval has no zone, and its days do not become months."""

    __slots__ = ("day", "days", "hour", "micros", "minute", "month", "offset", "second", "span",
                 "year", "zone")  # fmt: skip

    def __init__(self) -> None:
        self.year = self.month = self.day = self.days = 0
        self.hour = self.minute = self.second = self.micros = 0
        self.offset = 0
        self.zone = ""
        self.span = False


def _of_clock(clock: int) -> _Moment:
    found = _Moment()
    found.days, rest = divmod(clock, DAY_US)
    found.year, found.month, found.day = datetimes.civil(found.days)
    _set_time(found, rest)
    return found


def _set_time(found: _Moment, rest: int) -> None:
    seconds, found.micros = divmod(rest, 1_000_000)
    minutes, found.second = divmod(seconds, 60)
    found.hour, found.minute = divmod(minutes, 60)


def _infinite(value: int) -> bool:
    return value in (datetimes.INFINITY, datetimes.MINUS_INFINITY)


def _timestamp_text(value: int, picture: str) -> str | None:
    return None if _infinite(value) or not picture else _filled(_of_clock(value), picture)


def _moment_text(value: int, picture: str) -> str | None:
    if _infinite(value) or not picture:
        return None
    zone = current.environment.zone
    found = _of_clock(zone.local(value))
    found.offset = zone.offset_us(value) // 1_000_000
    found.zone = zone.abbreviation(value)
    return _filled(found, picture)


def _interval_text(value: bytes, picture: str) -> str | None:
    if not picture:
        return None
    months, found_days, micros = scalars.parts(value)
    found = _Moment()
    found.span = True
    found.year, found.month = int(months / 12), int(months - int(months / 12) * 12)
    found.day = found_days
    sign = -1 if micros < 0 else 1
    _set_time(found, abs(micros))
    found.hour, found.minute, found.second, found.micros = (
        sign * part for part in (found.hour, found.minute, found.second, found.micros)
    )
    return _filled(found, picture)


def _filled(moment: _Moment, picture: str) -> str:
    parts: list[str] = []
    for match in _PICTURE.finditer(picture):
        token = match.group()
        if token[:1] == '"' and len(token) > 1:
            parts.append(re.sub(r"\\(.)", r"\1", token[1:-1]))
            continue
        if token in ("FX", "TM"):
            continue
        fill = match.group(1) is None
        ordinal = match.group(2)
        name = token[len(match.group(1) or "") : len(token) - len(ordinal or "")]
        field = name if name in _NAMED else name.upper()
        if field not in _NAMED or (len(token) == 1 and field != token.upper()):
            parts.append(token)
            continue
        text = _field(moment, field, fill)
        if ordinal:
            suffix = _ordinal(int(text.strip() or 0))
            text += suffix.upper() if ordinal == "TH" else suffix
        parts.append(text)
    return "".join(parts)


def _ordinal(value: int) -> str:
    if value % 100 // 10 == 1:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")


def _digits(value: int, width: int, fill: bool) -> str:
    if not fill:
        return str(value)
    return f"{value:0{width + (value < 0)}d}"


def _cased(text: str, like: str, width: int, fill: bool) -> str:
    made = text.upper() if like.isupper() else text.lower() if like.islower() else text
    return made.ljust(width) if fill else made


def _field(moment: _Moment, name: str, fill: bool) -> str:
    found = _time_field(moment, name, fill)
    return found if found is not None else _date_field(moment, name, fill)


def _time_field(moment: _Moment, name: str, fill: bool) -> str | None:
    upper = name.upper()
    if name == "HH24":
        return _digits(moment.hour, 2, fill)
    if name in ("HH", "HH12"):
        hour = moment.hour % 12 or 12
        return _digits(hour, 2, fill)
    if name == "MI":
        return _digits(moment.minute, 2, fill)
    if name == "SS":
        return _digits(moment.second, 2, fill)
    if name in ("SSSS", "SSSSS"):
        return str(moment.hour * 3600 + moment.minute * 60 + moment.second)
    if name == "MS":
        return _digits(moment.micros // 1000, 3, fill)
    if name == "US":
        return _digits(moment.micros, 6, fill)
    if name.startswith("FF"):
        return f"{moment.micros:06d}"[: int(name[2])]
    if upper.replace(".", "") in ("AM", "PM"):
        half = "PM" if moment.hour % 24 >= 12 else "AM"
        half = half if "." not in name else f"{half[0]}.{half[1]}."
        return half if name == upper else half.lower()
    if upper == "TZ":
        zone = moment.zone
        return zone if name == "TZ" else zone.lower()
    if name in ("OF", "TZH", "TZM"):
        sign, seconds = "-" if moment.offset < 0 else "+", abs(moment.offset)
        if name == "TZM":
            return f"{seconds // 60 % 60:02d}"
        text = f"{sign}{seconds // 3600:02d}"
        minutes = seconds // 60 % 60
        return f"{text}:{minutes:02d}" if name == "OF" and minutes else text
    return None


def _date_field(moment: _Moment, name: str, fill: bool) -> str:
    upper = name.upper()
    year = moment.year if moment.year > 0 or moment.span else 1 - moment.year
    if name in ("YYYY", "YYY", "YY", "Y"):
        return _digits(year if len(name) == 4 else year % 10 ** len(name), len(name), fill)
    if name == "Y,YYY":
        return f"{year // 1000},{year % 1000:03d}"
    if upper.replace(".", "") in ("BC", "AD"):
        era = "AD" if moment.year > 0 else "BC"
        era = era if "." not in name else f"{era[0]}.{era[1]}."
        return era if name == upper else era.lower()
    if name == "MM":
        return _digits(moment.month, 2, fill)
    if name == "DD":
        return _digits(moment.day, 2, fill)
    if name == "CC":
        return _digits((year + 99) // 100, 2, fill)
    if moment.span and upper not in ("MONTH", "MON", "RM", "Q"):
        return ""
    if upper == "MONTH":
        return _cased(MONTH_NAMES[moment.month - 1], name, 9, fill)
    if upper == "MON":
        return _cased(MONTH_NAMES[moment.month - 1][:3], name, 3, fill)
    if upper == "RM":
        return _cased(_ROMAN[moment.month - 1], name, 4, fill)
    if name == "Q":
        return str((moment.month - 1) // 3 + 1)
    return _week_field(moment, name, fill)


def _week_field(moment: _Moment, name: str, fill: bool) -> str:
    upper = name.upper()
    of_week = (moment.days + 6) % 7
    first = datetimes.days_of(moment.year, 1, 1) or 0
    of_year = moment.days - first + 1
    iso_year, iso_week = _iso(moment.days)
    if upper == "DAY":
        return _cased(DAY_NAMES[of_week], name, 9, fill)
    if upper == "DY":
        return _cased(DAY_NAMES[of_week][:3], name, 3, fill)
    if name == "D":
        return str(of_week + 1)
    if name == "ID":
        return str(of_week or 7)
    if name == "DDD":
        return _digits(of_year, 3, fill)
    if name == "IDDD":
        return _digits((iso_week - 1) * 7 + (of_week or 7), 3, fill)
    if name == "WW":
        return _digits((of_year - 1) // 7 + 1, 2, fill)
    if name == "W":
        return str((moment.day - 1) // 7 + 1)
    if name == "IW":
        return _digits(iso_week, 2, fill)
    if name == "J":
        return str(moment.days + 2_451_545)
    return _digits(iso_year if len(name) == 4 else iso_year % 10 ** len(name), len(name), fill)


# ---------------------------------------------------------------------------------- text to a date


def _mismatch(text: str, name: str) -> CallerMistake:
    return CallerMistake(
        f'invalid value "{text[:10]}" for "{name}"',
        sqlstate="22007",
        detail="Value must be an integer.",
    )


_WIDTHS: Final = {
    "YYYY": 4, "YYY": 3, "YY": 2, "Y": 1, "MM": 2, "DD": 2, "DDD": 3, "HH24": 2, "HH12": 2,
    "HH": 2, "MI": 2, "SS": 2, "MS": 3, "US": 6, "J": 9, "D": 1, "Q": 1, "WW": 2, "CC": 2,
    "IYYY": 4, "IW": 2, "ID": 1, "SSSS": 5, "SSSSS": 5,
}  # fmt: skip


def _read(text: str, picture: str) -> tuple[dict[str, int], int | None]:
    found: dict[str, int] = {}
    offset: int | None = None
    position = 0
    tokens = list(_PICTURE.finditer(picture))
    for index, match in enumerate(tokens):
        token = match.group()
        if position >= len(text):
            break
        if token[:1] == '"' and len(token) > 1:
            position += len(token) - 2
            continue
        name = token[len(match.group(1) or "") : len(token) - len(match.group(2) or "")]
        field = name if name in _NAMED else name.upper()
        if field not in _NAMED or token in ("FX", "TM"):
            if token in ("FX", "TM"):
                continue
            if not token.isalnum():
                # A separator of the picture takes any of the text, and blanks too.
                while position < len(text) and text[position].isspace():
                    position += 1
                if position < len(text) and not text[position].isalnum() and not token.isspace():
                    position += 1 if text[position] not in "+-" or token == text[position] else 0
            else:
                position += 1
            continue
        while position < len(text) and text[position].isspace():
            position += 1
        rest, upper = text[position:], field.upper()
        if upper in ("MONTH", "MON"):
            word = re.match(r"[A-Za-z]+", rest)
            names = [n for n in MONTHS if word and word.group().lower().startswith(n)]
            if not names:
                raise CallerMistake(
                    f'invalid value "{rest[:9]}" for "{field}"',
                    sqlstate="22007",
                    detail="The given value did not match any of the allowed values for "
                    "this field.",
                )
            best = max(names, key=len) if upper == "MONTH" else rest[:3].lower()
            found["MM"] = MONTHS[best]
            position += len(best)
        elif upper in ("DAY", "DY"):
            word = re.match(r"[A-Za-z]+", rest)
            position += len(word.group()) if word else 0
        elif upper.replace(".", "") in ("AM", "PM"):
            found["PM"] = int(rest[:1].lower() == "p")
            position += len(field)
        elif upper.replace(".", "") in ("BC", "AD"):
            found["BC"] = int(rest[:1].lower() == "b")
            position += len(field)
        elif upper in ("TZH", "TZ", "OF"):
            zone = re.match(r"([+-]?)(\d{1,2})(?::?(\d{2}))?", rest)
            if zone is not None:
                seconds = int(zone[2]) * 3600 + int(zone[3] or 0) * 60
                offset = -seconds if zone[1] == "-" else seconds
                position += zone.end()
        else:
            width = _WIDTHS.get(field, 2)
            following = tokens[index + 1].group() if index + 1 < len(tokens) else ""
            packed = following[:1].isalpha()
            pattern = rf"[+-]?\d{{1,{width}}}" if packed or match.group(1) is None else r"[+-]?\d+"
            if field == "YYYY" and not packed:
                pattern = r"[+-]?\d+"
            number = re.match(pattern, rest)
            if number is None:
                raise _mismatch(rest, field)
            digits = number.group()
            found[field] = int(digits)
            if field in ("MS", "US"):
                found[field] = int(digits.ljust(3 if field == "MS" else 6, "0"))
            if field in ("YY", "YYY", "Y") or (field == "YYYY" and len(digits) <= 2):
                found[field] = int(digits)
            position += number.end()
    return found, offset


def _clock_of(text: str, picture: str, kind: str) -> tuple[int, int | None]:
    found, offset = _read(text, picture)
    year = found.get("YYYY", found.get("IYYY", 0))
    if "YYY" in found:
        year = found["YYY"] + (2000 if found["YYY"] < 520 else 1000)
    if "YY" in found:
        year = found["YY"] + (2000 if found["YY"] < 70 else 1900)
    if "Y" in found:
        year = found["Y"] + 2000
    if found.get("BC"):
        year = 1 - year
    elif not year and not {"YYYY", "YYY", "YY", "Y"} & set(found):
        year = 0
    hour = found.get("HH24", found.get("HH12", found.get("HH", 0)))
    if "HH12" in found or "HH" in found:
        if not 1 <= hour <= 12:
            raise CallerMistake(
                f'hour "{hour}" is invalid for the 12-hour clock',
                sqlstate="22007",
                hint="Use the 24-hour clock, or give an hour between 1 and 12.",
            )
        if "PM" in found:
            hour = hour % 12 + 12 * found["PM"]
    minute, second = found.get("MI", 0), found.get("SS", 0)
    micros = found.get("US", found.get("MS", 0) * 1000)
    if "J" in found:
        days: int | None = found["J"] - 2_451_545
    elif "DDD" in found:
        first = datetimes.days_of(year, 1, 1)
        days = None if first is None else first + found["DDD"] - 1
    elif "IW" in found:
        first = datetimes.days_of(year, 1, 4) or 0
        days = first - (first + 5) % 7 + (found["IW"] - 1) * 7 + found.get("ID", 1) - 1
    else:
        days = datetimes.days_of(year, found.get("MM", 1), found.get("DD", 1))
    if days is None or hour > 23 or minute > 59 or second > 59:
        raise CallerMistake(f'date/time field value out of range: "{text[:200]}"', sqlstate="22008")
    seconds = found.get("SSSS", found.get("SSSSS", (hour * 60 + minute) * 60 + second))
    return days * DAY_US + seconds * 1_000_000 + micros, offset


def _to_date(text: str, picture: str) -> int | None:
    return _clock_of(text, picture, "date")[0] // DAY_US


def _to_moment(text: str, picture: str) -> int | None:
    clock, offset = _clock_of(text, picture, "timestamp")
    return datetimes.moment(clock) if offset is None else clock - offset * 1_000_000


# ----------------------------------------------------------------------------------------- numbers

_NUMBER = re.compile(
    r'EEEE|eeee|FM|fm|TH|th|RN|rn|MI|mi|PL|pl|SG|sg|PR|pr|"(?:[^"\\]|\\.)*"|[09.,DGVLSdgvls]|.',
    re.DOTALL,
)


class _Picture:
    """A number's picture, taken apart."""

    def __init__(self, text: str) -> None:
        self.tokens = _NUMBER.findall(text)
        upper = [token.upper() for token in self.tokens]
        self.fill = "FM" not in upper
        self.exponent = "EEEE" in upper
        self.roman = "RN" in upper
        self.sign = next((t for t in upper if t in ("S", "MI", "PL", "SG", "PR")), "")
        self.sign_first = False
        self.whole = self.fraction = 0
        self.zero_from = -1
        self.shift = 0
        point = False
        shifted = False
        for token in upper:
            if token in ("0", "9"):
                if shifted:
                    self.shift += 1
                    self.whole += 1
                elif point:
                    self.fraction += 1
                else:
                    if token == "0" and self.zero_from < 0:
                        self.zero_from = self.whole
                    self.whole += 1
            elif token in (".", "D"):
                if point:
                    raise CallerMistake("multiple decimal points", sqlstate="42601")
                point = True
            elif token == "V":
                shifted = True
            elif token == "S":
                self.sign_first = self.whole == 0 and not point


def _number_text(value: Decimal, picture_text: str) -> str | None:
    if not picture_text:
        return ""
    picture = _Picture(picture_text)
    if picture.roman:
        return _roman(value, picture)
    if not value.is_finite():
        return "".join("#" if t in "09" else t for t in picture.tokens if t.upper() != "FM")
    if picture.exponent:
        return _scientific(value, picture)
    shown = numerics.rounded(value.scaleb(picture.shift, numerics.EXACT), picture.fraction)
    negative = shown < 0
    digits = f"{shown.copy_abs():f}"
    whole, _, fraction = digits.partition(".")
    whole = "" if whole == "0" and (picture.fraction or not shown) and picture.whole else whole
    if whole == "" and not picture.fraction:
        whole = "0"
    overflow = len(whole) > picture.whole
    return _printed(picture, whole, fraction, negative, overflow)


def _printed(picture: _Picture, whole: str, fraction: str, negative: bool, overflow: bool) -> str:
    parts: list[str] = []
    pad = picture.whole - len(whole)
    place, after = 0, 0
    started = False
    sign_at: int | None = None
    point = False
    kept = len(fraction.rstrip("0")) if not picture.fill else len(fraction)
    zeros = [i for i, t in enumerate(_fraction_tokens(picture)) if t == "0"]
    if zeros:
        kept = max(kept, zeros[-1] + 1)
    for token in picture.tokens:
        upper = token.upper()
        if upper in ("0", "9"):
            if point:
                if overflow:
                    parts.append("#")
                elif after < kept:
                    parts.append(fraction[after])
                after += 1
                continue
            if overflow:
                if sign_at is None:
                    sign_at = len(parts)
                parts.append("#")
            elif place < pad:
                if 0 <= picture.zero_from <= place:
                    if sign_at is None:
                        sign_at = len(parts)
                    started = True
                    parts.append("0")
                elif picture.fill:
                    parts.append(" ")
            else:
                if sign_at is None:
                    sign_at = len(parts)
                started = True
                parts.append(whole[place - pad])
            place += 1
        elif upper in (",", "G"):
            if started or overflow:
                parts.append(",")
            elif picture.fill:
                parts.append(" ")
        elif upper in (".", "D"):
            if sign_at is None:
                sign_at = len(parts)
            point = True
            if not (upper == "D" and not picture.fill and not kept) or upper == ".":
                parts.append(".")
        elif upper == "V":
            continue
        elif upper in ("FM", "TH", "EEEE", "RN"):
            if upper == "TH" and not negative and not picture.fraction:
                suffix = _ordinal(int(whole or 0))
                parts.append(suffix.upper() if token == "TH" else suffix)
        elif upper == "MI":
            if negative:
                parts.append("-")
            elif picture.fill:
                parts.append(" ")
        elif upper == "PL":
            if not negative:
                parts.append("+")
            elif picture.fill:
                parts.append(" ")
        elif upper == "SG":
            parts.append("-" if negative else "+")
        elif upper == "S":
            if not picture.sign_first:
                parts.append("-" if negative else "+")
        elif upper == "PR" or upper == "L":
            continue
        elif token[:1] == '"':
            parts.append(token[1:-1])
        else:
            parts.append(token)
    text = "".join(parts)
    at = len("".join(parts[: sign_at if sign_at is not None else 0]))
    return _signed(picture, text, at, negative)


def _fraction_tokens(picture: _Picture) -> list[str]:
    found: list[str] = []
    point = False
    for token in picture.tokens:
        if token.upper() in (".", "D"):
            point = True
        elif point and token in "09":
            found.append(token)
    return found


def _signed(picture: _Picture, text: str, at: int, negative: bool) -> str:
    """The text with its sign, which stands right before the first digit."""
    if picture.sign == "PR":
        if negative:
            return text[:at] + "<" + text[at:] + ">"
        return " " + text + " " if picture.fill else text
    if picture.sign in ("MI", "SG"):
        return text
    if picture.sign == "S":
        if not picture.sign_first:
            return text
        return text[:at] + ("-" if negative else "+") + text[at:]
    if picture.sign == "PL":
        if negative:
            return text[:at] + "-" + text[at:]
        return " " + text if picture.fill else text
    mark = "-" if negative else " " if picture.fill else ""
    return text[:at] + mark + text[at:]


def _scientific(value: Decimal, picture: _Picture) -> str:
    digits = f"{value:.{picture.fraction}E}" if value else f"{Decimal(0):.{picture.fraction}E}"
    mantissa, _, exponent = digits.partition("E")
    power = int(exponent) if value else 0
    if not value:
        mantissa = f"{0:.{picture.fraction}f}"
    sign = "" if mantissa.startswith("-") else " " if picture.fill else ""
    if picture.sign == "S" and not mantissa.startswith("-"):
        sign = "+"
    return f"{sign}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _roman(value: Decimal, picture: _Picture) -> str:
    number = int(numerics.rounded(value, 0)) if value.is_finite() else 0
    if not 1 <= number <= 3999:
        return "#" * 15
    text = ""
    for size, letters in (
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
        (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
    ):  # fmt: skip
        count, number = divmod(number, size)
        text += letters * count
    lower = "rn" in picture.tokens
    text = text.lower() if lower else text
    return text.rjust(15) if picture.fill else text


def _int_text(value: int, picture: str) -> str | None:
    return _number_text(Decimal(value), picture)


def _float_text(value: float, picture: str) -> str | None:
    number = (
        Decimal(f"{value:.15g}")
        if value == value and abs(value) != float("inf")
        else Decimal("NaN")
    )
    return _number_text(number, picture)


def _to_number(text: str, picture: str) -> Decimal | None:
    fields = _Picture(picture)
    digits = "".join(char for char in text if char.isdigit() or char == ".")
    if not digits.strip("."):
        raise CallerMistake(
            f'invalid input syntax for type numeric: "{text[:50] or " "}"', sqlstate="22P02"
        )
    negative = "-" in text or (fields.sign == "PR" and "<" in text)
    found = Decimal(("-" if negative else "") + digits)
    limit = fields.fraction
    scale = numerics.scale_of(found)
    return found if scale <= limit else numerics.rounded(found, limit)


_Text = Callable[[Any, str], str | None]


def _date_text(value: int, picture: str) -> str | None:
    return _timestamp_text(datetimes.date_to_timestamp(value), picture)


TABLE: Final[Table] = {
    "to_char": (
        maybe((TIMESTAMPTZ, TEXT), TEXT, _moment_text),
        maybe((TIMESTAMP, TEXT), TEXT, _timestamp_text),
        maybe((DATE, TEXT), TEXT, _date_text),
        maybe((INTERVAL, TEXT), TEXT, _interval_text),
        maybe((NUMERIC, TEXT), TEXT, _number_text),
        maybe((INT4, TEXT), TEXT, _int_text),
        maybe((INT8, TEXT), TEXT, _int_text),
        maybe((FLOAT8, TEXT), TEXT, _float_text),
        maybe((FLOAT4, TEXT), TEXT, _float_text),
    ),
    "to_number": (maybe((TEXT, TEXT), NUMERIC, _to_number),),
    "to_date": (maybe((TEXT, TEXT), DATE, _to_date),),
    "to_timestamp": (maybe((TEXT, TEXT), TIMESTAMPTZ, _to_moment),),
}
