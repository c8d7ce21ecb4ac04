"""Temporary tables: tables in a schema of the session's own, which goes when the session ends.

The schema is named by chance when it is first needed, and remembered as a setting of the session,
so that it follows the session to another node. It is the first place where a name is looked up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from compute.buffer.waits import Suspend, resumed
from compute.sql import ddl, relation_ddl
from compute.sql.definitions import Name
from compute.sql.environment import TEMPORARY
from compute.sql.plan import SessionLike, SqlState
from polarless.errors import PolarlessError

if TYPE_CHECKING:
    from compute.txn.engine import Engine

log = logging.getLogger(__name__)
PREFIX: Final = "pg_temp_"


def place(session: SessionLike, name: Name) -> Name:
    """Where a temporary table of this name belongs."""
    schema = session.settings.show(TEMPORARY)
    if not schema:
        schema = PREFIX + session.random(6).hex()
        session.settings.set(TEMPORARY, schema)
    return Name(schema, name.name, name.written)


class _Nobody:
    """What DDL needs of a session, when there is none any more."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.txn: Any = engine.begin("read committed")
        self.sql = SqlState()

    def notice(self, severity: str, sqlstate: str, message: str) -> None:
        """Nobody is there to be told."""


async def drop_all(engine: Engine, schema: str) -> None:
    """Drop what is in a session's schema; if that fails it stays, and harms nobody."""
    try:
        await _drop_all(engine, schema)
    except PolarlessError as error:
        log.info("temporary tables in %s stay: %s", schema, error)


async def _drop_all(engine: Engine, schema: str) -> None:
    session: Any = _Nobody(engine)
    try:
        await _retried(session, session.txn.start_statement)
        await _retried(session, lambda: _drop(session, schema))
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(lsn: int | None, error: Exception | None) -> None:
            if not acknowledged.done():
                if error is None:
                    acknowledged.set_result(None)
                else:
                    acknowledged.set_exception(error)

        await _retried(session, lambda: engine.commit(session.txn, done))
        await acknowledged
    except BaseException:
        engine.rollback(session.txn)
        raise


def _drop(session: Any, schema: str) -> None:
    catalog = ddl.current_catalog(session)
    relation_ddl.empty_schema(session, catalog, schema, cascade=True)


async def _retried(session: Any, step: Any) -> None:
    while True:
        mark = session.txn.savepoint()
        try:
            step()
            return
        except Suspend as suspend:
            session.txn.rollback_to(mark)
            await resumed(suspend)
