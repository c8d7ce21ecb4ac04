"""Time zones: where a clock on the wall stands at a moment, by the rules that came with Python.

A zone is found by its name, by one of PostgreSQL's usual abbreviations, or by its offset. Moments
and clocks are both microseconds from 2000-01-01, one of UTC and one of the wall.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from polarless.errors import CallerMistake

_SECOND: Final = 1_000_000
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
# 400 years have a whole number of weeks; beyond the years that Python knows rules repeat.
_CYCLE_US: Final = 146_097 * 86_400 * _SECOND
_LOW: Final = -1990 * 31_556_952 * _SECOND
_HIGH: Final = 7990 * 31_556_952 * _SECOND


class Zone:
    """A time zone. Two of one name are the same object."""

    __slots__ = ("_info", "fixed_us", "name")

    def __init__(self, name: str, info: tzinfo | None, fixed_us: int = 0) -> None:
        self.name = name
        self._info = info
        # The offset of a zone that has only one.
        self.fixed_us = fixed_us

    def offset_us(self, moment: int) -> int:
        """How far the wall's clock is ahead of UTC at a moment."""
        if self._info is None:
            return self.fixed_us
        found = (_EPOCH + timedelta(microseconds=_within(moment))).astimezone(self._info)
        return _microseconds(found.utcoffset())

    def local(self, moment: int) -> int:
        """What the wall's clock shows."""
        return moment + self.offset_us(moment)

    def moment(self, clock: int) -> int:
        """When it shows that. Where clocks go forward the offset before counts, where they go back
        the one after."""
        if self._info is None:
            return clock - self.fixed_us
        wall = (_EPOCH + timedelta(microseconds=_within(clock))).replace(tzinfo=self._info)
        offsets = (wall.utcoffset(), wall.replace(fold=1).utcoffset())
        return clock - min(map(_microseconds, offsets))

    def abbreviation(self, moment: int) -> str:
        """``CET``, ``EST``; a zone of an offset is called after it."""
        if self._info is None:
            return self.name if self.name == "UTC" else offset_text(self.fixed_us)
        found = (_EPOCH + timedelta(microseconds=_within(moment))).astimezone(self._info)
        return found.tzname() or ""

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _within(value: int) -> int:
    """An equivalent moment in the years that Python knows."""
    if value > _HIGH:
        return value - -(-(value - _HIGH) // _CYCLE_US) * _CYCLE_US
    if value < _LOW:
        return value + -(-(_LOW - value) // _CYCLE_US) * _CYCLE_US
    return value


def _microseconds(offset: timedelta | None) -> int:
    return 0 if offset is None else round(offset.total_seconds()) * _SECOND


def offset_text(offset_us: int) -> str:
    """``+02``, ``-03:30``, ``+05:21:10``."""
    sign = "-" if offset_us < 0 else "+"
    minutes, seconds = divmod(abs(offset_us) // _SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{sign}{hours:02d}"
    if minutes or seconds:
        text += f":{minutes:02d}"
    return f"{text}:{seconds:02d}" if seconds else text


UTC_ZONE: Final = Zone("UTC", None)
# PostgreSQL's default set of abbreviations, those that people write. Hours.
_ABBREVIATIONS: Final = {
    "utc": 0, "gmt": 0, "z": 0, "zulu": 0, "ut": 0, "uct": 0, "wet": 0, "west": 1, "bst": 1,
    "cet": 1, "cest": 2, "met": 1, "mest": 2, "eet": 2, "eest": 3, "msk": 3, "msd": 4, "ist": 2,
    "jst": 9, "kst": 9, "hkt": 8, "sgt": 8, "aest": 10, "aedt": 11, "acst": 9.5, "awst": 8,
    "nzst": 12, "nzdt": 13, "ast": -4, "adt": -3, "est": -5, "edt": -4, "cst": -6, "cdt": -5,
    "mst": -7, "mdt": -6, "pst": -8, "pdt": -7, "akst": -9, "akdt": -8, "hst": -10,
    "nst": -3.5, "ndt": -2.5, "brt": -3, "art": -3, "clt": -4, "sast": 2,
}  # fmt: skip
_OFFSET = re.compile(r"([+-]?)(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_POSIX = re.compile(r"([A-Za-z]{3,}|<[+\-\w]+>)([+-]?)(\d{1,2})(?::?(\d{2}))?")


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {name.lower(): name for name in zoneinfo.available_timezones()}


@lru_cache(maxsize=1024)
def _named(name: str) -> Zone | None:
    real = _names().get(name.lower())
    if real is None:
        return None
    if real in ("UTC", "Etc/UTC", "Zulu", "UCT", "Etc/UCT"):
        return UTC_ZONE if real == "UTC" else Zone(real, None)
    return Zone(real, zoneinfo.ZoneInfo(real))


@lru_cache(maxsize=1024)
def fixed(offset_us: int) -> Zone:
    """The zone of an offset, named as PostgreSQL shows it: ``<+02>-02``."""
    text = offset_text(offset_us)
    sign = "+" if offset_us < 0 else "-"
    return Zone(f"<{text}>{sign}{text[1:]}", None, offset_us)


def _unknown(name: str) -> CallerMistake:
    return CallerMistake(f'time zone "{name}" not recognized', sqlstate="22023")


@lru_cache(maxsize=1024)
def find(name: str, *, setting: bool = False) -> Zone:
    """A zone by what people write. Raises 22023. ``setting``: a bare number counts hours."""
    text = name.strip()
    found = _named(text)
    if found is not None:
        return found
    hours = None if setting else _ABBREVIATIONS.get(text.lower())
    if hours is not None:
        return Zone(text.upper(), None, round(hours * 3600) * _SECOND)
    if setting:
        try:
            return fixed(round(float(text) * 3600) * _SECOND)
        except (ValueError, OverflowError):
            pass
    match = _POSIX.fullmatch(text)
    if match is not None:
        # POSIX counts westwards.
        _, sign, digits, minutes = match.groups()
        offset = (int(digits) * 3600 + int(minutes or 0) * 60) * _SECOND
        return Zone(text, None, offset if sign == "-" else -offset)
    match = _OFFSET.fullmatch(text)
    if match is None or not text:
        raise _unknown(name)
    sign, digits, minutes, seconds = match.groups()
    offset = (int(digits) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)) * _SECOND
    # In AT TIME ZONE an offset is POSIX's too.
    return fixed(offset if sign == "-" else -offset)


def in_text(name: str) -> Zone | int | None:
    """A zone in the text of a timestamp: one of a name, or the offset of an abbreviation."""
    hours = _ABBREVIATIONS.get(name.lower())
    if hours is not None:
        return round(hours * 3600) * _SECOND
    return _named(name)
