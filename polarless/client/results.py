"""What comes back: rows as dicts, and errors as this project's own.

`translated` turns a driver's error into the class that says what to do next (`polarless.errors`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import asyncpg

from polarless.errors import (
    CallerMistake,
    CommitUnknown,
    Conflict,
    ConnectionLost,
    CorruptData,
    DeadlineExceeded,
    Deadlock,
    Fenced,
    Overloaded,
    PolarlessError,
    Reroute,
    Retry,
)

Row = dict[str, Any]

_EXACT: Final[dict[str, type[PolarlessError]]] = {
    "40001": Conflict,
    "40P01": Deadlock,
    "25006": Reroute,
    "08007": CommitUnknown,
    "57014": DeadlineExceeded,
    "57P01": Fenced,
    "57P03": Retry,
    "XX001": CorruptData,
}
_CLASSES: Final[dict[str, type[PolarlessError]]] = {"08": ConnectionLost, "53": Overloaded}


def to_error(error: BaseException) -> PolarlessError:
    """The same error in this project's words."""
    if isinstance(error, asyncpg.PostgresError):
        state = str(error.sqlstate or "XX000")
        cls = _EXACT.get(state) or _CLASSES.get(state[:2]) or CallerMistake
        hint, detail = getattr(error, "hint", None), getattr(error, "detail", None)
        return cls(str(error.args[0]), sqlstate=state, hint=hint, detail=detail)
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("the server did not answer in time")
    return ConnectionLost(f"the connection to the server ended: {error}")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise what the driver raises as a `PolarlessError`."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        if isinstance(error, asyncpg.InterfaceError) and "connection" not in str(error):
            # A wrong use of the driver: a value of a wrong type, a closed pool.
            raise CallerMistake(str(error)) from error
        raise to_error(error) from error
