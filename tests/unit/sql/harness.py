"""A session without a wire: runs statements as `compute.session` does, and parses the answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from compute.buffer.waits import Suspend, resumed
from compute.session.settings import Settings
from compute.sql.plan import Bound, Plan, SessionLike, SqlState
from compute.sql.planner import Planner
from compute.txn.engine import Engine
from polarless.errors import CallerMistake
from tests.fakes import Cluster, commit, running

NOW_US = 1_700_000_000_123_456


class Result(list[tuple[Any, ...]]):
    """The rows, as text or raw bytes; ``tag`` and ``columns`` beside them."""

    tag: str = ""
    columns: tuple[Any, ...] = ()

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


class Sink:
    def __init__(self) -> None:
        self.data = b""

    async def rows(self, data: bytes) -> None:
        self.data += data


class Client:
    """One session."""

    def __init__(self, engine: Engine, planner: Planner) -> None:
        self.engine = engine
        self.planner = planner
        self.settings = Settings({}, fixed={}, report=lambda name, value: None)
        self.sql = SqlState()
        self.txn: Any = None
        self.explicit = False
        self.savepoints: dict[str, int] = {}
        self.now_us = NOW_US
        self.user = self.database = "me"
        self.pid = 42
        self.notices: list[str] = []

    def notice(self, severity: str, sqlstate: str, message: str) -> None:
        self.notices.append(message)

    def random(self, count: int) -> bytes:
        return bytes(range(count))

    async def run(self, text: str, *params: Any, formats: Sequence[int] = ()) -> Result:
        """Run one statement. ``params`` are text, None, or bytes in binary format."""
        bound, values = await self._prepare(text, params, formats)
        plan = bound.plan
        result = Result()
        result.columns = plan.columns
        if await self._control(plan, result):
            return result
        implicit = self.txn is None
        try:
            data = await self._execute(bound, values, text, params, formats)
            if implicit and self.txn is not None:
                txn, self.txn = self.txn, None
                await commit(self.engine, txn)
        except BaseException:
            if implicit:
                if self.txn is not None:
                    self.engine.rollback(self.txn)
                self.txn = None
            raise
        parse(data, result, text_format=not any(bound.result_formats))
        return result

    async def value(self, text: str, *params: Any) -> Any:
        """The only value of the only row."""
        ((found,),) = await self.run(text, *params)
        return found

    async def _prepare(
        self, text: str, params: Sequence[Any], formats: Sequence[int]
    ) -> tuple[Bound, Sequence[Any]]:
        if not params and not formats:
            found: tuple[Bound, Sequence[Any]] = await running(
                lambda: self.planner.prepare_simple(cast("SessionLike", self), text)
            )
            return found
        plan = await running(lambda: self.planner.prepare(cast("SessionLike", self), text, ()))
        param_formats = tuple(int(isinstance(param, bytes)) for param in params)
        values = [param.encode() if isinstance(param, str) else param for param in params]
        assert len(values) == len(plan.parameter_oids), plan.parameter_oids
        return plan.bind(param_formats, tuple(formats)), values

    async def _execute(
        self, bound: Bound, values: Any, text: str, params: Any, formats: Any
    ) -> bytes:
        plan = bound.plan
        while True:
            if plan.catalog_version not in (-1, self.engine.catalog_version):
                bound, values = await self._prepare(text, params, formats)
                plan = bound.plan
            mark = 0
            if plan.writes or not plan.fast or self.txn is not None:
                self.begin()
                await running(self.txn.start_statement)
                mark = self.txn.savepoint()
            try:
                if plan.fast:
                    data = bound.run(self, values)
                    if data is not None:
                        return data
                break
            except Suspend as suspend:
                if self.txn is not None:
                    self.txn.rollback_to(mark)
                waiting = suspend
            await resumed(waiting)
        if self.txn is None:
            self.begin()
            txn: Any = self.txn
            await running(txn.start_statement)
        sink = Sink()
        tag = await bound.rows(cast("SessionLike", self), values, sink)
        return sink.data + b"C" + (len(tag) + 5).to_bytes(4, "big") + tag.encode() + b"\0"

    def begin(self) -> None:
        if self.txn is None:
            self.txn = self.engine.begin(self.settings.isolation)

    async def _control(self, plan: Plan, result: Result) -> bool:
        kind = plan.kind
        if kind == "begin":
            self.txn = self.engine.begin(plan.argument.isolation or "read committed")
        elif kind == "commit":
            txn, self.txn = self.txn, None
            if txn is not None:
                await commit(self.engine, txn)
        elif kind == "rollback":
            txn, self.txn = self.txn, None
            if txn is not None:
                self.engine.rollback(txn)
        elif kind == "savepoint":
            self.savepoints[plan.argument] = self.txn.savepoint()
        elif kind == "rollback_to":
            self.txn.rollback_to(self.savepoints[plan.argument])
        elif kind not in ("release", "empty", "deallocate", "discard", "close", "set_transaction"):
            return False
        result.tag = plan.verb
        return True

    async def copy(self, text: str, data: str | bytes, *, piece_bytes: int = 1 << 16) -> str:
        """COPY FROM STDIN. Returns the tag."""
        bound, _ = await self._prepare(text, (), ())
        implicit = self.txn is None
        self.begin()
        await running(self.txn.start_statement)
        raw = data.encode() if isinstance(data, str) else data
        try:
            copier = bound.copy(cast("SessionLike", self))
            for start in range(0, len(raw), piece_bytes):
                await copier.write(raw[start : start + piece_bytes])
            tag = await copier.finish()
            if implicit:
                txn, self.txn = self.txn, None
                await commit(self.engine, txn)
        except BaseException:
            if implicit and self.txn is not None:
                self.engine.rollback(self.txn)
                self.txn = None
            raise
        return tag

    async def error(self, text: str, *params: Any) -> CallerMistake:
        """The error that a statement ends with."""
        try:
            result = await self.run(text, *params)
        except Exception as error:
            return error  # type: ignore[return-value]
        raise AssertionError(f"{text!r} gave {result.tag} {result}")

    async def state(self, text: str, *params: Any) -> str:
        """The SQLSTATE that a statement ends with."""
        return (await self.error(text, *params)).sqlstate


def parse(data: bytes, result: Result, *, text_format: bool) -> None:
    """DataRows and the CommandComplete into a `Result`."""
    position = 0
    while position < len(data):
        kind = data[position : position + 1]
        length = int.from_bytes(data[position + 1 : position + 5], "big")
        body = data[position + 5 : position + 1 + length]
        assert len(body) == length - 4, "a message is cut"
        position += 1 + length
        if kind == b"D":
            result.append(_row(body, text_format=text_format))
        else:
            assert kind == b"C", kind
            result.tag = body[:-1].decode()
    assert result.tag


def _row(body: bytes, *, text_format: bool) -> tuple[Any, ...]:
    values: list[Any] = []
    position = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        size = int.from_bytes(body[position : position + 4], "big", signed=True)
        position += 4
        if size < 0:
            values.append(None)
            continue
        raw = body[position : position + size]
        values.append(raw.decode() if text_format else raw)
        position += size
    assert position == len(body)
    return tuple(values)


class Database:
    """A writer and its planner; `client` gives sessions."""

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        self.engine = engine
        self.cluster = cluster
        self.planner = Planner(engine)

    def client(self) -> Client:
        return Client(self.engine, self.planner)


@contextlib.asynccontextmanager
async def database(*, cache_bytes: int = 64 << 20) -> AsyncIterator[Database]:
    """A database in memory."""
    async with Cluster(cache_bytes=cache_bytes) as cluster:
        found = Database(await cluster.writer(), cluster)
        yield found
