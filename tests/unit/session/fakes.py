"""A clock, a transport, an engine and a planner that do what a test says.

The planner's language, one statement a text:

    select A B ...      a row; $1 stands for the first parameter      rows N       N rows
    put K               write key K (a parameter if $1)            get          keys written so far
    lock K              wait for a lock until the engine lets go   page N       wait for a page
    large               `run` gives None, `rows` one row           slow N       N rows from a task
    hang                a task that never ends                     error | bug  raises
    copy                COPY FROM STDIN of lines                      set NAME VALUE | show NAME
    begin [isolation] | commit [chain] | rollback | savepoint N | release N | rollback to N
    deallocate NAME | deallocate all | discard all | close NAME | (nothing)
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import Callable, Sequence
from typing import Any

from compute.buffer.waits import Suspend, resumed
from compute.greeting import Greeting
from compute.pgwire.backend import command_complete, message
from compute.server import SqlServer
from compute.session.limits import Limits
from compute.session.session import Session
from compute.sql.plan import ANY_VERSION, Bound, Column, Plan, TransactionOptions
from compute.sql.roles import Access
from compute.txn.locks import LockWait
from polarless.errors import CallerMistake, PolarlessError
from polarless.kernel.world import World
from tests.unit.session import wire

Resume = Callable[[PolarlessError | None], None]


class ManualClock:
    """Time passes when the test says so; what is due soon runs in `run`."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._soon: list[Callable[[], object]] = []
        self._later: list[tuple[float, int, _Timer]] = []
        self._count = 0

    def now(self) -> float:
        return self.time

    def wall_us(self) -> int:
        return int(self.time * 1_000_000)

    def call_soon(self, callback: Callable[[], object]) -> object:
        self._soon.append(callback)
        return None

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback)
        self._count += 1
        heapq.heappush(self._later, (self.time + delay_s, self._count, timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)

    @property
    def timers(self) -> int:
        """How many timers are armed."""
        return sum(1 for _, _, timer in self._later if timer.callback is not None)

    def run(self) -> None:
        """Everything that is due soon."""
        while self._soon:
            self._soon.pop(0)()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time += seconds
        while self._later and self._later[0][0] <= self.time:
            callback = heapq.heappop(self._later)[2].callback
            if callback is not None:
                callback()
        self.run()


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeTransport:
    """Keeps what is written. ``unread`` is what the client has not taken."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.reading = True
        self.protocol: Any = None
        self.unread = 0
        self.peer = "127.0.0.1"
        self.tls: Any = None

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 1) if name == "peername" else self.tls if name == "sslcontext" else None

    def take(self) -> bytes:
        """What was written since the last time."""
        data = b"".join(self.written)
        self.written.clear()
        return data


class FakeSuspend(Suspend):
    """Waits for ``engine.resume(reason)``."""

    def __init__(self, engine: FakeEngine, reason: str) -> None:
        super().__init__(reason)
        self.engine = engine
        self.reason = reason

    def subscribe(self, resume: Resume) -> None:
        self.engine.waiting.setdefault(self.reason, []).append((self, resume))

    def cancel(self) -> None:
        self.engine.cancelled.append(self.reason)
        self.engine.waiting.pop(self.reason, None)


class FakeLockWait(LockWait):
    """The same for a lock."""

    def __init__(self, engine: FakeEngine, txn: FakeTransaction, key: str) -> None:
        Suspend.__init__(self, key)
        self.engine = engine
        self.key = key
        self.tree_id = 1
        self.txn = txn

    @property
    def reason(self) -> str:  # type: ignore[override]
        return f"lock {self.key}"

    def subscribe(self, resume: Resume) -> None:
        self.txn.waits_for = self
        self.engine.waiting.setdefault(self.reason, []).append((self, resume))

    def cancel(self) -> None:
        self.txn.waits_for = None
        self.engine.cancelled.append(self.reason)
        self.engine.waiting.pop(self.reason, None)


class FakeTransaction:
    def __init__(self, engine: FakeEngine, isolation: str, read_only: bool) -> None:
        self.engine = engine
        self.isolation = isolation
        self.read_only = read_only
        self.snapshot = 0
        self.writes: list[str] = []
        self.waits_for: Any = None
        self.depends = 0
        self.cts = 0
        self.ended = False

    def unpublished(self) -> None:
        return None

    @property
    def has_writes(self) -> bool:
        return bool(self.writes)

    def start_statement(self) -> None:
        assert not self.ended
        self.snapshot += 1
        self.engine.statements += 1

    def pin(self) -> None:
        assert self.snapshot

    def savepoint(self) -> int:
        return len(self.writes)

    def rollback_to(self, mark: int) -> None:
        del self.writes[mark:]


class FakeEngine:
    """Commits at once, or when the test calls `acknowledge`, if ``delayed``."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.writable = True
        self.fenced: PolarlessError | None = None
        self.catalog_version = 1
        self.delayed = False
        self.commit_error: BaseException | None = None
        self.committed: list[str] = []
        self.open = 0
        self.statements = 0
        self.pending: list[tuple[FakeTransaction, Any]] = []
        self.waiting: dict[str, list[tuple[Any, Resume]]] = {}
        self.cancelled: list[str] = []
        self.ready: set[str] = set()

    def begin(
        self, isolation: str, *, read_only: bool = False, reuse: Any = None
    ) -> FakeTransaction:
        self.open += 1
        return FakeTransaction(self, isolation, read_only)

    def commit(self, txn: FakeTransaction, done: Any) -> None:
        assert not txn.ended
        if self.commit_error is not None:
            error, self.commit_error = self.commit_error, None
            raise error
        txn.ended = True
        self.open -= 1
        if self.delayed and txn.writes:
            self.pending.append((txn, done))
            return
        self.committed += txn.writes
        done(1, None)

    def catalog_changed(self) -> None:
        self.catalog_version += 1

    def rollback(self, txn: FakeTransaction) -> None:
        if not txn.ended:
            txn.ended = True
            self.open -= 1
            txn.writes.clear()

    def acknowledge(self, error: PolarlessError | None = None) -> None:
        """Answer all commits under way."""
        pending, self.pending = self.pending, []
        for txn, done in pending:
            if error is None:
                self.committed += txn.writes
            done(None if error else 1, error)

    def resume(self, reason: str, error: PolarlessError | None = None) -> None:
        """What was waited for is there."""
        self.ready.add(reason)
        for suspend, resume in self.waiting.pop(reason):
            if isinstance(suspend, FakeLockWait):
                suspend.txn.waits_for = None
            resume(error)


def row(*values: str) -> bytes:
    body = len(values).to_bytes(2, "big")
    for value in values:
        body += len(value).to_bytes(4, "big") + value.encode()
    return message(b"D", body)


class FakeCopy:
    column_count = 2
    binary = False

    def __init__(self, session: Any) -> None:
        self.session = session
        self.data = b""
        self.gate: asyncio.Event | None = None

    async def write(self, data: bytes) -> None:
        if self.session.planner.copy_gate is not None:
            await self.session.planner.copy_gate.wait()
        if b"bad" in data:
            raise CallerMistake("bad row", sqlstate="22P04")
        self.data += data

    async def finish(self) -> str:
        rows = self.data.decode().splitlines()
        self.session.txn.writes += rows
        return f"COPY {len(rows)}"

    async def abort(self) -> None:
        self.session.planner.aborted += 1


class FakeBound(Bound):
    __slots__ = ("words",)

    def __init__(self, plan: Plan, results: tuple[int, ...], words: list[str]) -> None:
        super().__init__(plan, results, self._run)
        self.words = words

    def _run(self, session: Any, params: Sequence[Any]) -> bytes | None:
        verb, *rest = self.words
        engine = session.engine
        args = [params[int(a[1:]) - 1].decode() if a.startswith("$") else a for a in rest]
        if verb == "select":
            return row(*args) + command_complete("SELECT 1")
        if verb == "rows":
            count = int(args[0])
            return b"".join(row(str(i)) for i in range(count)) + command_complete(f"SELECT {count}")
        if verb == "get":
            own = session.txn.writes if session.txn is not None else []
            return row(",".join([*engine.committed, *own])) + command_complete("SELECT 1")
        if verb == "put":
            session.txn.writes.append(args[0])
            return command_complete("INSERT 0 1")
        if verb in ("lock", "page"):
            reason = f"{verb} {args[0]}"
            if session.txn is not None and verb == "lock":
                session.txn.writes.append(args[0])
            if reason not in engine.ready:
                if verb == "lock":
                    raise FakeLockWait(engine, session.txn, args[0])
                raise FakeSuspend(engine, reason)
            return row(args[0]) + command_complete("SELECT 1")
        if verb == "error":
            raise CallerMistake("it went wrong", sqlstate="22012")
        if verb == "bug":
            raise ValueError("secret detail")
        if verb == "set":
            session.settings.set(args[0], " ".join(args[1:]))
            return command_complete("SET")
        if verb == "show":
            return row(session.settings.show(args[0])) + command_complete("SHOW")
        return None

    async def rows(self, session: Any, params: Sequence[Any], sink: Any) -> str:
        verb, *args = self.words
        if verb == "hang":
            await asyncio.Event().wait()
        if verb == "slowlock":
            await resumed(FakeLockWait(session.engine, session.txn, args[0]))
            return "SELECT 0"
        if verb == "large":
            await sink.rows(row("large"))
            return "SELECT 1"
        count = int(args[0])
        for index in range(count):
            await sink.rows(row(str(index)))
        if "error" in args:
            raise CallerMistake("in the middle", sqlstate="22012")
        return f"SELECT {count}"

    def copy(self, session: Any) -> Any:
        return FakeCopy(session)


_ONE = (Column("a", 25, -1, -1),)
_CONTROLS = {"begin", "commit", "rollback", "savepoint", "release", "deallocate", "discard"}


class FakePlanner:
    def random(self, count: int) -> bytes:
        return bytes(count)

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.prepared = 0
        self.aborted = 0
        self.rollbacks_seen = 0
        self.copy_gate: asyncio.Event | None = None
        self.columns_now: tuple[Column, ...] = _ONE
        self._plans: dict[tuple[str, int], Plan] = {}

    def split(self, text: str) -> list[str]:
        return [part for part in text.split(";") if part.strip()]

    def rolled_back(self, session: Any) -> None:
        self.rollbacks_seen += 1

    def prepare_simple(self, session: Any, text: str) -> tuple[Bound, Sequence[Any]]:
        return self.prepare(session, text, ()).bind(), ()

    def prepare(self, session: Any, text: str, param_oids: Sequence[int]) -> Plan:
        key = (text, self.engine.catalog_version)
        if key not in self._plans:
            self.prepared += 1
            bare = re.sub(r"--.*", "", text)
            self._plans[key] = self._make(bare.strip(" ;").lower().split())
        return self._plans[key]

    def _make(self, words: list[str]) -> Plan:
        if not words:
            return Plan("empty")
        verb = words[0]
        if verb == "missing":
            raise CallerMistake(f'relation "{words[1]}" does not exist', sqlstate="42P01")
        if verb in _CONTROLS or verb == "close":
            return self._control(verb, words)
        if verb == "copy":
            kind = "copy_in"
        elif verb in ("set", "show"):
            kind = "set"
        elif verb in ("put", "lock"):
            kind = "write"
        elif verb in (
            *("select", "rows", "get", "page", "error", "bug"),
            *("large", "slow", "slowlock", "hang"),
        ):
            kind = "query"
        else:
            raise CallerMistake(f'syntax error at or near "{verb}"')
        writes = kind in ("write", "copy_in")
        columns: tuple[Column, ...] = ()
        if verb == "select":
            columns = tuple(Column(f"c{i}", 25, -1, -1) for i, _ in enumerate(words[1:]))
        elif not writes and verb != "set":
            columns = self.columns_now
        return Plan(
            kind,
            parameter_oids=(25,) * sum(word.startswith("$") for word in words),
            columns=columns,
            catalog_version=ANY_VERSION if kind == "set" else self.engine.catalog_version,
            writes=writes,
            fast=verb not in ("slow", "slowlock", "hang", "copy"),
            verb=verb.upper(),
            binder=lambda plan, params, results: FakeBound(plan, results, words),
        )

    def _control(self, verb: str, words: list[str]) -> Plan:
        argument: Any = None
        if verb == "rollback" and words[1:2] == ["to"]:
            return Plan("rollback_to", argument=words[2])
        if verb in ("begin", "commit", "rollback"):
            rest = " ".join(word for word in words[1:] if word != "chain")
            argument = TransactionOptions(
                isolation=rest if rest and rest != "read only" else None,
                read_only=True if rest == "read only" else None,
                chain="chain" in words,
            )
        elif words[1:] != ["all"] or verb == "discard":
            argument = words[1]
        return Plan(verb, argument=argument)


class FakeAccess:
    """Who may come in: everybody, until a test says otherwise. ``suspend`` is raised once."""

    def __init__(self) -> None:
        self.access = Access()
        self.suspend: Suspend | None = None

    def current(self) -> Access:
        suspend, self.suspend = self.suspend, None
        if suspend is not None:
            raise suspend
        return self.access


class Harness:
    """A server and its connections, without sockets."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.clock = ManualClock()
        self.engine = FakeEngine(self.clock)
        self.planner = FakePlanner(self.engine)
        network: Any = None
        world = World(network, self.clock, _Random(), network, network)
        engine: Any = self.engine
        self.access = FakeAccess()
        self.server = SqlServer(world, engine, self.planner, limits, access=self.access)

    def greet(self) -> tuple[Greeting, FakeTransport]:
        """A connection that has said nothing."""
        greeting, transport = Greeting(self.server), FakeTransport()
        transport.protocol = greeting
        greeting.connection_made(transport)  # type: ignore[arg-type]
        return greeting, transport

    def connect(self, **parameters: str) -> Connection:
        """A session."""
        greeting, transport = self.greet()
        greeting.data_received(wire.startup(3 << 16, user="u", **parameters))
        return Connection(self, transport)


class Connection:
    """A client: sends bytes, takes lines."""

    def __init__(self, harness: Harness, transport: FakeTransport) -> None:
        self.harness = harness
        self.transport = transport
        assert isinstance(transport.protocol, Session), wire.lines(transport.take())
        self.session: Session = transport.protocol
        self.greeting = wire.lines(transport.take())

    def send(self, *data: bytes) -> list[str]:
        """Send, and what has been answered when everything that was due has run."""
        self.session.data_received(b"".join(data))
        self.harness.clock.run()
        return self.take()

    def query(self, text: str) -> list[str]:
        return self.send(wire.Q(text))

    def take(self) -> list[str]:
        return wire.lines(self.transport.take())

    async def settle(self) -> list[str]:
        """Let tasks run until nothing more happens."""
        for _ in range(50):
            await asyncio.sleep(0)
            self.harness.clock.run()
        return self.take()

    def is_read(self) -> bool:
        """Whether the server takes more from the socket."""
        return self.transport.reading

    def is_closed(self) -> bool:
        """Whether the server has closed it."""
        return self.transport.closed

    def lose(self) -> None:
        """The client is gone."""
        self.session.connection_lost(None)


class _Random:
    def __init__(self) -> None:
        self._count = 0

    def token(self, byte_count: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(byte_count, "big")

    def uniform(self, low: float, high: float) -> float:
        return low
