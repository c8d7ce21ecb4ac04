"""Runs one statement on a cluster, for ``polarless sql``."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from polarless.errors import CallerMistake, ConnectionLost, PolarlessError

CONNECT_S = 10.0


class Result(NamedTuple):
    """Column names, rows, and the command tag."""

    columns: list[str]
    rows: list[list[Any]]
    tag: str


def run(url: str, text: str) -> Result:
    """Run a statement. Raises PolarlessError with the server's message, hint and SQLSTATE."""
    return asyncio.run(_run(url, text))


async def _run(url: str, text: str) -> Result:
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_S, ssl=False)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise ConnectionLost(f"{url} does not answer: {error or 'time-out'}") from None
    try:
        statement = await connection.prepare(text)
        found = await statement.fetch()
        columns = [attribute.name for attribute in statement.get_attributes()]
        return Result(columns, [list(row) for row in found], statement.get_statusmsg())
    except asyncpg.PostgresError as error:
        kind = CallerMistake if str(error.sqlstate).startswith(("42", "22", "23")) else None
        raise (kind or PolarlessError)(
            f"{error.sqlstate}: {error}", hint=error.hint, detail=error.detail
        ) from None
    except (OSError, asyncpg.InterfaceError) as error:
        raise ConnectionLost(f"the connection was lost: {error}") from None
    finally:
        await connection.close(timeout=2.0)
