"""POSIX regular expressions by way of Python's.

What PostgreSQL writes otherwise is translated: classes in brackets (``[[:alpha:]]``), ends of words
(``\\m \\M \\y``). The rest of what people write means the same in both.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from polarless.errors import CallerMistake

_CLASSES: Final = {
    "[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:alnum:]": "a-zA-Z0-9", "[:space:]": r"\s",
    "[:upper:]": "A-Z", "[:lower:]": "a-z", "[:punct:]": r"!-/:-@\[-`{-~", "[:blank:]": r" \t",
    "[:xdigit:]": "0-9a-fA-F", "[:cntrl:]": r"\x00-\x1f\x7f", "[:print:]": r"\x20-\x7e",
    "[:graph:]": r"\x21-\x7e", "[:word:]": r"\w",
}  # fmt: skip
_WORDS: Final = {
    r"\m": r"\b(?=\w)", r"\M": r"\b(?<=\w)", r"\y": r"\b", r"\Y": r"\B", r"\Z": r"\Z",
}  # fmt: skip
_TRANSLATED = re.compile(r"\[:\w+:\]|\\.", re.DOTALL)
PATTERN_CHARS_MAX: Final = 10_000


@lru_cache(maxsize=256)
def compiled(pattern: str, flags: str) -> re.Pattern[str]:
    """``flags`` as PostgreSQL writes them (``i``, ``n``, ``x``, ``q``). Raises 2201B."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise CallerMistake("invalid regular expression: too long", sqlstate="2201B")
    if pattern.startswith("(?") and ")" in pattern and pattern[2 : pattern.index(")")].isalpha():
        end = pattern.index(")")
        pattern, flags = pattern[end + 1 :], flags + pattern[2:end]
    if pattern.startswith("***="):
        source = re.escape(pattern[4:])
    elif "q" in flags:
        source = re.escape(pattern)
    else:
        source = _TRANSLATED.sub(lambda found: _replaced(found.group()), pattern)
        # For PostgreSQL $ is the end of the text, for Python also a place before a last newline.
        if source.endswith("$") and not source.endswith("\\$") and "n" not in flags:
            source = source[:-1] + r"\Z"
    python = re.DOTALL
    for flag in flags:
        if flag == "i":
            python |= re.IGNORECASE
        elif flag == "c":
            python &= ~re.IGNORECASE
        elif flag in "nm":
            python = python & ~re.DOTALL | re.MULTILINE
        elif flag == "w":
            python |= re.MULTILINE
        elif flag == "p":
            python &= ~re.DOTALL
        elif flag == "x":
            python |= re.VERBOSE
    try:
        return re.compile(source, python)
    except (re.error, RecursionError, OverflowError) as error:
        raise CallerMistake(f"invalid regular expression: {error}", sqlstate="2201B") from None


def _replaced(text: str) -> str:
    return _CLASSES.get(text) or _WORDS.get(text) or text


def matches(text: str, pattern: str) -> bool:
    """``~``"""
    return compiled(pattern, "").search(text) is not None


def matches_any_case(text: str, pattern: str) -> bool:
    """``~*``"""
    return compiled(pattern, "i").search(text) is not None
