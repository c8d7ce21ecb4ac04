"""Where in a client's text an error is: field P, in characters from 1, which psql points at.

Errors of syntax know it themselves, within their statement. For a name that does not exist it is
looked for: the message quotes it, and its first appearance in the statement is nearly always it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from polarless.errors import PolarlessError

# Undefined and ambiguous: tables, columns, functions, types.
_OF_NAMES: Final = frozenset({"42P01", "42703", "42702", "42883", "42704"})
_NAME = re.compile(
    r'(?:relation|column|column reference|type) "?([\w.$]+)"? |function ([\w.$]+)\(', re.UNICODE
)
# Longer statements are made by programs, which do not look.
TEXT_CHARS_MAX: Final = 100_000


def locate(error: PolarlessError, text: str) -> int | None:
    """The position of an error in its statement, or None."""
    if error.position is not None:
        return error.position
    if error.sqlstate not in _OF_NAMES or len(text) > TEXT_CHARS_MAX:
        return None
    quoted = _NAME.match(error.message)
    if quoted is None:
        return None
    name = re.escape(quoted[1] or quoted[2])
    found = re.search(rf'(?<![\w$\'"])"?{name}"?(?![\w$])', text, re.IGNORECASE)
    return found.start() + 1 if found is not None else None
