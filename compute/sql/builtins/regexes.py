"""Functions of regular expressions: regexp_replace(), regexp_match() and their kin, SIMILAR TO."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from compute.sql.builtins.patterns import compiled
from compute.sql.builtins.signatures import Table, loose, maybe, plain
from compute.sql.builtins.texts import TEXTS, checked
from compute.sql.types import BOOL, INT4, TEXT
from polarless.errors import CallerMistake


def _flags(flags: str, *, allow_global: bool, name: str) -> tuple[str, bool]:
    """The flags that the pattern gets, and whether ``g`` is among them."""
    kept, every = "", False
    for flag in flags:
        if flag == "g":
            every = True
        elif flag in "icnmsxwpqebtc":
            kept += flag
        else:
            raise CallerMistake(f'invalid regular expression option: "{flag}"', sqlstate="22023")
    if every and not allow_global:
        raise CallerMistake(
            f'{name}() does not support the "global" option',
            sqlstate="22023",
            hint="Use the regexp_matches function instead." if name == "regexp_match" else None,
        )
    return kept, every


_REFERENCE = re.compile(r"\\(?:([1-9])|(&)|(\\))")


def _replacement(found: re.Match[str], new: str) -> str:
    def one(reference: re.Match[str]) -> str:
        digit, whole, _ = reference.groups()
        if whole:
            return found.group()
        if digit:
            place = int(digit)
            return (found.group(place) or "") if place <= (found.re.groups or 0) else ""
        return "\\"

    return _REFERENCE.sub(one, new)


def _replace(text: str, pattern: str, new: str, flags: str = "") -> str:
    if flags[:1].isdigit():
        raise CallerMistake(
            f'invalid regular expression option: "{flags[0]}"',
            sqlstate="22023",
            hint="If you meant to use regexp_replace() with a start parameter, cast the fourth "
            "argument to integer explicitly.",
        )
    kept, every = _flags(flags, allow_global=True, name="regexp_replace")
    return _replaced(text, compiled(pattern, kept), new, 0 if every else 1)


def _replaced(text: str, pattern: re.Pattern[str], new: str, count: int) -> str:
    return checked(pattern.sub(lambda found: _replacement(found, new), text, count=count))


def _replace_from(
    text: str, pattern: str, new: str, start: int, which: int = 1, flags: str = ""
) -> str:
    _positive(start, "start")
    if which < 0:
        raise CallerMistake('invalid value for parameter "n": ' + str(which), sqlstate="22023")
    kept, _ = _flags(flags, allow_global=True, name="regexp_replace")
    seen = 0

    def one(found: re.Match[str]) -> str:
        nonlocal seen
        seen += 1
        return _replacement(found, new) if which in (0, seen) else found.group()

    return text[: start - 1] + compiled(pattern, kept).sub(one, text[start - 1 :])


def _positive(value: int, name: str) -> None:
    if value <= 0:
        raise CallerMistake(f'invalid value for parameter "{name}": {value}', sqlstate="22023")


def _groups(found: re.Match[str]) -> list[str | None]:
    return list(found.groups()) if found.re.groups else [found.group()]


def _match(text: str, pattern: str, flags: str = "") -> list[str | None] | None:
    kept, _ = _flags(flags, allow_global=False, name="regexp_match")
    found = compiled(pattern, kept).search(text)
    return None if found is None else _groups(found)


def matches(text: str, pattern: str, flags: str = "") -> list[list[str | None]]:
    """All rows of regexp_matches()."""
    kept, every = _flags(flags, allow_global=True, name="regexp_matches")
    found = compiled(pattern, kept).finditer(text)
    rows = [_groups(one) for one in found] if every else []
    if not every:
        one = compiled(pattern, kept).search(text)
        rows = [] if one is None else [_groups(one)]
    return rows


def split(text: str, pattern: str, flags: str = "") -> list[str]:
    """regexp_split_to_array(): empty matches at the ends and right after a match do not count."""
    kept, _ = _flags(flags, allow_global=False, name="regexp_split_to_array")
    parts, last = [], 0
    for found in compiled(pattern, kept).finditer(text):
        if found.end() == found.start() and found.start() in (0, len(text)):
            continue
        if found.end() == found.start() == last and last:
            continue
        parts.append(text[last : found.start()])
        last = found.end()
    return [*parts, text[last:]]


def _count(text: str, pattern: str, start: int = 1, flags: str = "") -> int:
    _positive(start, "start")
    kept, _ = _flags(flags, allow_global=False, name="regexp_count")
    return sum(1 for _ in compiled(pattern, kept).finditer(text[start - 1 :]))


def _like(text: str, pattern: str, flags: str = "") -> bool:
    kept, _ = _flags(flags, allow_global=False, name="regexp_like")
    return compiled(pattern, kept).search(text) is not None


def _nth(text: str, pattern: str, start: int, which: int, flags: str) -> re.Match[str] | None:
    _positive(start, "start")
    _positive(which, "n")
    found: Iterator[re.Match[str]] = compiled(pattern, flags).finditer(text, start - 1)
    for number, one in enumerate(found, 1):
        if number == which:
            return one
    return None


def _instr(
    text: str, pattern: str, start: int = 1, which: int = 1, end: int = 0, flags: str = "",
    group: int = 0,
) -> int:  # fmt: skip
    kept, _ = _flags(flags, allow_global=False, name="regexp_instr")
    found = _nth(text, pattern, start, which, kept)
    if found is None or group > (found.re.groups or 0):
        return 0
    return (found.end(group) if end else found.start(group)) + 1


def _substr(
    text: str, pattern: str, start: int = 1, which: int = 1, flags: str = "", group: int = 0
) -> str | None:
    kept, _ = _flags(flags, allow_global=False, name="regexp_substr")
    found = _nth(text, pattern, start, which, kept)
    return None if found is None or group > (found.re.groups or 0) else found.group(group)


def _substring(text: str, pattern: str) -> str | None:
    found = compiled(pattern, "").search(text)
    if found is None:
        return None
    return found.group(1) if found.re.groups else found.group()


# ------------------------------------------------------------------------------------- SIMILAR TO


def similar(pattern: str | None, escape: str | None = "\\") -> str | None:
    """SQL's regular expression as one of POSIX, held at both ends. Raises 22019."""
    if pattern is None:
        return None
    if escape is not None and len(escape) > 1:
        raise CallerMistake(
            "invalid escape string",
            sqlstate="22019",
            hint="Escape string must be empty or one character.",
        )
    parts: list[str] = []
    position, quotes, inside = 0, 0, False
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if escape and char == escape:
            following = pattern[position : position + 1]
            position += 1
            if following == '"' and not inside:
                # Between the two marks is what substring() gives.
                parts.append("){1,1}?(" if quotes == 0 else "){1,1}(?:")
                quotes += 1
            else:
                parts.append("\\" + following if not following.isalnum() else following)
        elif inside:
            inside = char != "]"
            parts.append("\\\\" if char == "\\" else char)
        elif char == "[":
            inside = True
            parts.append(char)
        elif char == "%":
            parts.append(".*")
        elif char == "_":
            parts.append(".")
        elif char == "(":
            parts.append("(?:")
        elif char in "\\.^$":
            parts.append("\\" + char)
        else:
            parts.append(char)
    return "^(?:" + "".join(parts) + ")$"


def _similar_to(text: str, pattern: str) -> bool:
    return compiled(pattern, "s").search(text) is not None


def similar_substring(text: str, pattern: str, escape: str) -> str | None:
    """``substring(text similar pattern escape escape)``."""
    made = similar(pattern, escape)
    assert made is not None
    return _substring(text, made)


TABLE: Final[Table] = {
    "regexp_replace": (
        plain((TEXT, TEXT, TEXT), TEXT, _replace),
        plain((TEXT, TEXT, TEXT, TEXT), TEXT, _replace),
        plain((TEXT, TEXT, TEXT, INT4), TEXT, _replace_from),
        plain((TEXT, TEXT, TEXT, INT4, INT4), TEXT, _replace_from),
        plain((TEXT, TEXT, TEXT, INT4, INT4, TEXT), TEXT, _replace_from),
    ),
    "regexp_match": (
        maybe((TEXT, TEXT), TEXTS, _match),
        maybe((TEXT, TEXT, TEXT), TEXTS, _match),
    ),
    "regexp_split_to_array": (
        plain((TEXT, TEXT), TEXTS, split),
        plain((TEXT, TEXT, TEXT), TEXTS, split),
    ),
    "regexp_count": (
        plain((TEXT, TEXT), INT4, _count),
        plain((TEXT, TEXT, INT4), INT4, _count),
        plain((TEXT, TEXT, INT4, TEXT), INT4, _count),
    ),
    "regexp_like": (
        plain((TEXT, TEXT), BOOL, _like),
        plain((TEXT, TEXT, TEXT), BOOL, _like),
    ),
    "regexp_instr": tuple(
        plain((TEXT, TEXT, INT4, INT4, INT4, TEXT, INT4)[:count], INT4, _instr)
        for count in range(2, 8)
    ),
    "regexp_substr": tuple(
        maybe((TEXT, TEXT, INT4, INT4, TEXT, INT4)[:count], TEXT, _substr) for count in range(2, 7)
    ),
    "substring": (maybe((TEXT, TEXT), TEXT, _substring),),
    "similar_to_escape": (loose((TEXT,), TEXT, similar), loose((TEXT, TEXT), TEXT, similar)),
    "similar_to": (plain((TEXT, TEXT), BOOL, _similar_to),),
    "similar_substring": (maybe((TEXT, TEXT, TEXT), TEXT, similar_substring),),
}
