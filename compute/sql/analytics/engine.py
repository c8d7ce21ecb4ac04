"""The embedded DuckDB of a compute node: one instance, made at the first query that needs it.

* It has no access to files or the network, one thread, a memory limit, no temporary files.
* A query runs in a worker thread. Cancelling the statement interrupts it.
* At most `RUNNING_MAX` queries run or hold results at a time; others wait in line.

DuckDB and numpy are imported when the node starts: importing takes a tenth of a second, which the
loop cannot spare later. The instance itself is made by the first query, in the thread.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from compute.sql.analytics.leaves import Function, current
from compute.sql.analytics.udf import COMMON
from compute.sql.mistakes import out_of_range
from polarless.errors import CallerMistake, Overloaded, PolarlessError

MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
RUNNING_MAX: Final = 8
# A client that does not read its result keeps its place. Others are told after a while.
SLOT_WAIT_S: Final = 30
THREADS: Final = 2
SWITCH_INTERVAL_S: Final = 0.0005


class NeedsExact(Exception):
    """A DECIMAL overflowed: the query has to run again with numerics as text."""


@dataclass(frozen=True, slots=True)
class Job:
    """One query: its text, parameters, columns of tables by name, and functions.

    ``more`` makes the columns of further tables, in the thread.
    """

    sql: str
    parameters: Sequence[Any]
    tables: Mapping[str, Mapping[str, Any]]
    more: Callable[[], Mapping[str, Mapping[str, Any]]]
    functions: Sequence[Function]
    session: Any
    catalog: Any
    access: Any


class Engine:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._instance: Any = None
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._running = asyncio.Semaphore(RUNNING_MAX)
        # Functions of plans that are gone; removed before the next query.
        self.stale: list[str] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for one's turn, and have it. Raises `Overloaded`."""
        try:
            async with asyncio.timeout(SLOT_WAIT_S):
                await self._running.acquire()
        except TimeoutError:
            raise Overloaded(
                f"{RUNNING_MAX} analytic queries have been running for {SLOT_WAIT_S} s",
                hint="Try again later, read results to their end, or ask another node.",
            ) from None
        try:
            yield
        finally:
            self._running.release()

    @asynccontextmanager
    async def run(self, job: Job) -> AsyncIterator[Rows]:
        """Run a query; the rows can be fetched inside. Raises `NeedsExact`, or what is wrong."""
        rows = Rows(self, job)
        try:
            await rows.start()
            yield rows
        finally:
            await rows.close()

    async def call(self, work: Callable[[], Any], interrupt: Callable[[], None]) -> Any:
        """Run ``work`` in a worker thread; interrupt it when the task is cancelled."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "analytics")
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            interrupt()
            # The thread must have let go of the columns before they are given up.
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise

    # In the worker thread.

    def connect(self, functions: Sequence[Function]) -> Any:
        """A connection on which the functions are known."""
        with self._lock:
            if self._instance is None:
                self._instance = _open()
                self._known = set()
                self._define(COMMON)
            while self.stale:
                name = self.stale.pop()
                if name in self._known:
                    self._known.discard(name)
                    self._instance.remove_function(name)
            self._define(functions)
            return self._instance.cursor()

    def _define(self, functions: Sequence[Function]) -> None:
        for function in functions:
            if function.name not in self._known:
                self._instance.create_function(
                    function.name,
                    function.python,
                    list(function.takes),
                    function.gives,
                    type="native",
                    null_handling="special",
                )
                self._known.add(function.name)

    def broken(self) -> None:
        """The instance cannot be used any more; the next query makes a new one."""
        with self._lock:
            self._instance = None


def _open() -> Any:
    # How long a thread keeps the interpreter while another one wants it. The default of 5 ms is
    # what a session would wait, several times over, while our code runs inside of a query.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    instance = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": f"{MEMORY_BYTES_MAX // (1024 * 1024)}MiB",
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    # In this order: the last two forbid any further change.
    instance.execute("SET enable_external_access = false")
    instance.execute("SET lock_configuration = true")
    return instance


class Rows:
    """A query under way."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self._job = job
        self._cursor: Any = None
        self._cancelled = False

    async def start(self) -> None:
        """Run it up to its first rows."""
        await self._engine.call(self._start, self._interrupt)

    async def fetch(self, then: Callable[[list[Any]], Any], count: int) -> Any:
        """``then(rows)`` of the next rows, computed in the thread; None at the end."""
        return await self._engine.call(lambda: self._fetch(then, count), self._interrupt)

    async def close(self) -> None:
        """Let go of everything."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def _interrupt(self) -> None:
        self._cancelled = True
        cursor = self._cursor
        if cursor is not None:
            cursor.interrupt()

    def _start(self) -> None:
        job = self._job
        cursor = self._engine.connect(job.functions)
        self._cursor = cursor
        if self._cancelled:
            return
        more = self._guarded(job.more)
        for name, columns in (*job.tables.items(), *more.items()):
            cursor.register(name, dict(columns))
        self._guarded(lambda: cursor.execute(job.sql, list(job.parameters) or None))

    def _fetch(self, then: Callable[[list[Any]], Any], count: int) -> Any:
        def work() -> Any:
            rows = self._cursor.fetchmany(count)
            return then(rows) if rows else None

        return self._guarded(work)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        current.set(self._job.session, self._job.catalog, self._job.access)
        try:
            return work()
        except duckdb.Error as error:
            own, current.error = current.error, None
            if own is not None:
                raise own from None
            if isinstance(error, (duckdb.FatalException, duckdb.InternalException)):
                self._engine.broken()
            raise understood(error) from None
        finally:
            current.clear()


_INTS: Final = {"INT16": "smallint", "INT32": "integer", "INT64": "bigint", "INT128": "bigint"}
_INT = re.compile(r"INT(?:16|32|64|128)\b")


def understood(error: Any) -> Exception:
    """What DuckDB's error means to a client of PostgreSQL."""
    text = str(error)
    if isinstance(error, (duckdb.OutOfRangeException, duckdb.ConversionException)):
        if "DECIMAL" in text or "decimal" in text:
            return NeedsExact()
        found = _INT.findall(text)
        return out_of_range(_INTS[found[-1]] if found else "value")
    if "More than one row returned by a subquery" in text:
        return CallerMistake(
            "more than one row returned by a subquery used as an expression", sqlstate="21000"
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return Overloaded(
            f"the query needs more than {MEMORY_BYTES_MAX} bytes of memory",
            hint="Narrow it with WHERE, or aggregate in smaller steps.",
        )
    if isinstance(error, duckdb.InterruptException):
        return CallerMistake("canceling statement due to user request", sqlstate="57014")
    unsupported = (
        duckdb.BinderException,
        duckdb.ParserException,
        duckdb.NotImplementedException,
        duckdb.CatalogException,
        duckdb.InvalidInputException,
        duckdb.SyntaxException,
    )
    if isinstance(error, unsupported):
        return CallerMistake(
            "a query of this form is not supported",
            sqlstate="0A000",
            detail=text[:500],
            hint="Try to write it in another way: simpler subqueries, or a join.",
        )
    return PolarlessError(f"the query failed: {text[:500]}")
