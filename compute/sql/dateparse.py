"""Dates and times as people write them: ``Jan 8, 1999``, ``20240229T123456``, ``1/8/1999 4:05 PM``.

What programs write (ISO 8601) is read by `datetimes` itself; this is for all the rest.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from compute.sql import zones
from compute.sql.environment import current
from compute.sql.zones import Zone
from polarless.errors import CallerMistake

MONTH_NAMES: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
DAY_NAMES: Final = (
    "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday",
)  # fmt: skip
_days = [name.lower() for name in DAY_NAMES]
MONTHS: Final = {
    **{name[:3].lower(): number for number, name in enumerate(MONTH_NAMES, 1)},
    **{name.lower(): number for number, name in enumerate(MONTH_NAMES, 1)},
    "sept": 9,
}
_DAYS: Final = frozenset({*_days, *(name[:3] for name in _days), "tues", "weds", "thur", "thurs"})
_TOKEN = re.compile(
    r"""[\s,]+
    |(?P<clock>[Tt]?\d{1,2}:\d{1,2}(?::\d{1,2}(?:\.\d*)?)?)
    |(?P<date>\d+[-/.]\d+[-/.]\d+|\d+-[A-Za-z]+-\d+|[A-Za-z]{3,}-\d+-\d+|\d{4}\.\d{3}(?!\d))
    |(?P<zone>[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?)
    |(?P<packed>\d{8}[Tt ]\d{6}(?:\.\d+)?|\d{8}|\d{6}(?:\.\d+)?)(?!\d)
    |(?P<number>\d+)
    |(?P<word>[A-Za-z][A-Za-z_]*(?:/[A-Za-z_+\-0-9]+)*\.?)""",
    re.VERBOSE,
)


class Parts(NamedTuple):
    """What a text says; ``day`` None: no date in it; ``clock_us`` None: no time."""

    date: tuple[int, int, int] | None
    clock_us: int | None
    zone: Zone | int | None
    word: str = ""


class _Bad(Exception):
    """The text is none of these."""


def parse(text: str, *, want_clock: bool = False) -> Parts | None:
    """The parts of a text; None if it is no date or time. Raises 22008 for values out of range."""
    try:
        return _Reader(text, want_clock).read()
    except _Bad:
        return None


def _range_error(text: str) -> CallerMistake:
    hint = None
    return CallerMistake(
        f'date/time field value out of range: "{text[:200]}"', sqlstate="22008", hint=hint
    )


class _Reader:
    def __init__(self, text: str, want_clock: bool) -> None:
        self.text = text
        self.want_clock = want_clock
        self.date: tuple[int, int, int] | None = None
        self.clock_us: int | None = None
        self.zone: Zone | int | None = None
        self.word = ""
        self.month: int | None = None
        self.numbers: list[str] = []
        self.era = ""
        self.half = ""

    def read(self) -> Parts:
        position, text = 0, self.text.strip()
        if not text:
            raise _Bad
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise _Bad
            if found.lastgroup is not None:
                getattr(self, "_" + found.lastgroup)(found.group())
            position = found.end()
        self._finish()
        return Parts(self.date, self.clock_us, self.zone, self.word)

    def _finish(self) -> None:
        if self.month is not None or self.numbers:
            if self.month is None or not 1 <= len(self.numbers) <= 2 or self.date is not None:
                raise _Bad
            first, *rest = self.numbers
            year = rest[0] if rest else ""
            if len(first) > 2:
                first, year = year, first
            if not first or not year:
                raise _Bad
            self.date = (_year(year), self.month, int(first))
        if self.date is not None and self.era == "bc":
            self.date = (1 - self.date[0], *self.date[1:])
        if self.half and self.clock_us is None:
            raise _Bad
        if self.half and self.clock_us is not None:
            hour = self.clock_us // 3_600_000_000
            if not 1 <= hour <= 12:
                raise _range_error(self.text)
            rest_us = self.clock_us % 3_600_000_000
            self.clock_us = (hour % 12 + (12 if self.half == "pm" else 0)) * 3_600_000_000 + rest_us

    def _clock(self, token: str) -> None:
        if self.clock_us is not None:
            raise _Bad
        hour, minute, *rest = token.lstrip("Tt").split(":")
        seconds, _, fraction = rest[0].partition(".") if rest else ("0", "", "")
        self._set_clock(int(hour), int(minute), int(seconds), fraction)

    def _set_clock(self, hour: int, minute: int, second: int, fraction: str = "") -> None:
        us = round(float("0." + fraction) * 1_000_000) if fraction else 0
        total = (hour * 3600 + minute * 60 + second) * 1_000_000 + us
        if minute > 59 or second > 60 or hour > 24 or total > 86_400_000_000:
            raise _range_error(self.text)
        self.clock_us = total

    def _date(self, token: str) -> None:
        if self.date is not None:
            raise _Bad
        parts = re.split(r"[-/.]", token)
        if len(parts) == 2:
            self.date = _of_year_day(int(parts[0]), int(parts[1]), self.text)
            return
        if parts[0].isalpha() or parts[1].isalpha():
            name = parts[0] if parts[0].isalpha() else parts[1]
            month = MONTHS.get(name.lower())
            if month is None:
                raise _Bad
            numbers = [part for part in parts if not part.isalpha()]
            if len(numbers[0]) > 2:
                self.date = (_year(numbers[0]), month, int(numbers[1]))
            else:
                self.date = (_year(numbers[1]), month, int(numbers[0]))
            return
        if len(parts[0]) > 2:
            self.date = (_year(parts[0]), int(parts[1]), int(parts[2]))
            return
        order = current.environment.date_order
        if order == "YMD":
            self.date = (_year(parts[0]), int(parts[1]), int(parts[2]))
        elif order == "DMY":
            self.date = (_year(parts[2]), int(parts[1]), int(parts[0]))
        else:
            self.date = (_year(parts[2]), int(parts[0]), int(parts[1]))
        if not 1 <= self.date[1] <= 12:
            raise CallerMistake(
                f'date/time field value out of range: "{self.text[:200]}"',
                sqlstate="22008",
                hint='Perhaps you need a different "datestyle" setting.',
            )

    def _zone(self, token: str) -> None:
        if self.clock_us is None and self.date is None:
            raise _Bad
        digits = token[1:].replace(":", "")
        offset = int(digits[:2]) * 3600 + int(digits[2:4] or 0) * 60 + int(digits[4:6] or 0)
        self.zone = (-offset if token[0] == "-" else offset) * 1_000_000

    def _packed(self, token: str) -> None:
        whole, _, clock = token.replace("T", " ").replace("t", " ").partition(" ")
        if len(whole) == 8 and self.date is None:
            self.date = (int(whole[:4]), int(whole[4:6]), int(whole[6:]))
        elif self.want_clock or self.date is not None:
            clock = whole
        elif len(whole) == 6:
            self.date = (_year(whole[:2]), int(whole[2:4]), int(whole[4:]))
        else:
            raise _Bad
        if clock:
            digits, _, fraction = clock.partition(".")
            if len(digits) != 6 or self.clock_us is not None:
                raise _Bad
            self._set_clock(int(digits[:2]), int(digits[2:4]), int(digits[4:]), fraction)

    def _number(self, token: str) -> None:
        self.numbers.append(token)

    def _word(self, token: str) -> None:
        word = token.lower().rstrip(".")
        if word in ("am", "pm"):
            self.half = word
        elif word in ("ad", "bc"):
            self.era = word
        elif word in _DAYS or word == "t":
            return
        elif word in MONTHS and self.month is None and self.date is None:
            self.month = MONTHS[word]
        elif word in ("now", "today", "tomorrow", "yesterday"):
            self.word = word
        elif word == "allballs":
            self.clock_us = 0
        else:
            found = zones.in_text(token)
            if found is None:
                if self.date is not None and "/" in token:
                    raise CallerMistake(
                        f'time zone "{token.lower()}" not recognized', sqlstate="22023"
                    )
                raise _Bad
            self.zone = found


def _year(digits: str) -> int:
    year = int(digits)
    if len(digits) <= 2:
        year += 2000 if year < 70 else 1900
    return year


def _of_year_day(year: int, day: int, text: str) -> tuple[int, int, int]:
    from datetime import date, timedelta

    found = date(year, 1, 1) + timedelta(days=day - 1)
    if day < 1 or found.year != year:
        raise _range_error(text)
    return found.year, found.month, found.day
