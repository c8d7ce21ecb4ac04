"""Running a SELECT: generated code for the rows, and what gathers them.

    source --batches--> step: filter, project, encode --> chunks, or sorted, or grouped --> sink

* A SELECT by the full primary key is one generated function from parameters to the answer's bytes.
* Anything that may be hoped to be short (a bounded range, few keys, no table) is first tried in one
  synchronous step of at most `ROWS_PER_STEP` rows.
* All else runs as a coroutine, in bounded memory: what a sort, DISTINCT or GROUP BY keeps is
  counted (`gather`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

from compute.buffer.fetch import PageMiss
from compute.sql import aggregates, gather
from compute.sql.expressions import ColumnRef, Emitter, Node, ParamSlot, is_constant, walk
from compute.sql.gather import ENTRY_BYTES, Gatherer, Ordering, Output, Work
from compute.sql.operators import sort_value
from compute.sql.plan import Bound, Params, Plan, RowSink, SessionLike, command_complete
from compute.sql.rowcode import (
    base_names,
    compile_function,
    emit_params,
    emit_row,
    param_decoder,
    start_step,
)
from compute.sql.scan import ROWS_PER_STEP, Batch, Source, batches
from compute.sql.select import Order, Select
from compute.txn.versions import visible
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.txn.transaction import Transaction

# A synchronous step that has read so many rows when a page is missing is not tried again.
REREAD_ROWS_MAX: Final = 16

Step = Callable[..., None]


# ------------------------------------------------------------------------------------- point select


def point_select(
    found: Select, slots: list[ParamSlot], params: tuple[int, ...], results: tuple[int, ...]
) -> Callable[[Any, Params], bytes | None]:
    """The generated function of a SELECT by the full primary key."""
    access = found.access
    assert access is not None
    names = base_names()
    out = Emitter(names)
    nothing = command_complete("SELECT 0")
    names |= {"tree": access.table.tree, "find": access.table.tree.find, "visible": visible}
    emit_params(out, slots, params)
    key = access.emit_point(out, empty=f"return {nothing!r}")
    out.line("txn = session.txn")
    with out.block("if txn is None"):
        out.line("snapshot = session.engine.snapshot(session.settings.reuse)")
        out.line(f"version = find({key})")
        out.line("while version is not None and version[0] > snapshot: version = version[2]")
        out.line(f"if version is None: return {nothing!r}")
        out.line("payload = version[1]")
        with out.block("if type(payload) is tuple"):
            out.names["large"] = large_value
            out.line("payload = large(session, payload)")
    with out.block("else"):
        out.line(f"payload = txn.get(tree, {key})")
    out.line(f"if payload is None: return {nothing!r}")
    if _needs_row(found):
        out.line("r = unpack(payload)")
    for node in access.rest:
        out.line(f"if {node.emit(out)} is not True: return {nothing!r}")
    values = [output.node.emit(out) for output in found.outputs]
    row = emit_row(out, values, [output.node for output in found.outputs], results)
    out.line(f"return {row} + {command_complete('SELECT 1')!r}")
    return compile_function("run", "session, params", out)


def large_value(session: SessionLike, place: tuple[int, int, int]) -> bytes:
    """A value on overflow pages, for a read without a transaction. May raise a `Suspend`."""
    return session.engine.fetcher.large(place[1], place[2], place[0])


def _needs_row(found: Select) -> bool:
    """Whether any column is read."""
    nodes: list[Node] = [output.node for output in found.outputs]
    nodes += [order.node for order in found.order] + found.groups
    if found.access is not None:
        nodes += found.access.rest
    elif found.where is not None:
        nodes.append(found.where)
    nodes += [a.arg for a in found.aggregates if a.arg is not None]
    return any(isinstance(item, ColumnRef) for node in nodes for item in walk(node))


# ---------------------------------------------------------------------------------- generated steps


def reads_rows(found: Select) -> bool:
    """Whether a step takes decoded rows; else keys and payloads, if it needs anything of them."""
    return found.access is not None and _needs_row(found) and not found.lock


def _filters(found: Select) -> list[Node]:
    if found.access is not None:
        return found.access.rest
    return [found.where] if found.where is not None else []


def _emit_loop(out: Emitter, found: Select) -> None:
    """The head of the loop over a batch, with the filter; leaves the emitter inside."""
    if reads_rows(found):
        out.line("for r in batch:")
        out.indent += 1
    else:
        out.line("for key, payload in batch:")
        out.indent += 1
        if _needs_row(found):
            out.line("r = unpack(payload)" if found.access is not None else "r = payload")
    for node in _filters(found):
        out.line(f"if {node.emit(out)} is not True: continue")


def _sort_key(out: Emitter, order: Order) -> str:
    value = order.node.emit(out)
    comparable = value
    if order.node.type.family in ("float", "numeric"):
        out.names["sort_value"] = sort_value
        comparable = f"sort_value({value})"
    if not order.node.nullable:
        return comparable
    # NULL counts as larger than everything, or as smaller, whichever puts it where it is wanted.
    larger = order.nulls_first == order.descending
    return f"({value} is {'' if larger else 'not '}None, {comparable})"


def rows_step(found: Select, slots: list[ParamSlot], results: tuple[int, ...] | None) -> Step:
    """``step(session, P, batch, out, seen)``: appends DataRows, or entries to sort.

    An entry is ``(sort keys..., DataRow)``. ``seen`` are the values of the rows that DISTINCT has
    let through.
    """
    out = start_step(slots)
    out.line("append = out.append")
    _emit_loop(out, found)
    _emit_entry(out, found, results)
    return compile_function("step", "session, P, batch, out, seen", out)


def _emit_entry(out: Emitter, found: Select, results: tuple[int, ...] | None) -> None:
    nodes = [output.node for output in found.outputs]
    values = [node.emit(out) for node in nodes]
    identity = f"({', '.join(values)},)" if values else "()"
    if found.distinct:
        # Of the rows that are the same the first one is kept, and no other is encoded.
        out.line(f"same = {values[0] if len(values) == 1 else identity}")
        out.line("if same in seen: continue")
        out.line("seen.add(same)")
    row = identity if results is None else emit_row(out, values, nodes, results)
    keys = [_sort_key(out, order) for order in found.order]
    if keys:
        row = f"({', '.join(keys)}, {row})"
    out.line(f"append({row})")


def group_step(found: Select, slots: list[ParamSlot]) -> Step:
    """``step(session, P, batch, groups)``: updates the states of the groups."""
    out = start_step(slots)
    if not found.groups:
        out.line("a = groups[()]")
        if not _filters(found) and all(a.arg is None for a in found.aggregates):
            for aggregate in found.aggregates:
                out.line(f"a[{aggregate.index}] += len(batch)")
            return compile_function("step", "session, P, batch, groups", out)
    _emit_loop(out, found)
    if found.groups:
        keys = [node.emit(out) for node in found.groups]
        out.names["new_state"] = lambda: aggregates.initial(found.aggregates)
        out.line(f"k = ({', '.join(keys)},)")
        out.line("a = groups.get(k)")
        out.line("if a is None: a = groups[k] = new_state()")
    for aggregate in found.aggregates:
        aggregates.emit_update(out, aggregate)
    out.line("pass")
    return compile_function("step", "session, P, batch, groups", out)


def group_output(found: Select, slots: list[ParamSlot], results: tuple[int, ...] | None) -> Step:
    """``step(session, P, batch, out, seen)`` over groups ``(key, results)``, as `rows_step`."""
    out = start_step(slots)
    out.line("append = out.append")
    out.line("for key, a in batch:")
    out.indent += 1
    if found.groups:
        out.line(f"({', '.join(f'g{i}' for i in range(len(found.groups)))},) = key")
    if found.having is not None:
        out.line(f"if {found.having.emit(out)} is not True: continue")
    _emit_entry(out, found, results)
    return compile_function("finish", "session, P, batch, out, seen", out)


# --------------------------------------------------------------------------------------- gathering


class Reader:
    """Reads, filters and groups: everything of a SELECT up to its ordered, limited entries.

    With ``results`` None rows are tuples of values in place of DataRows: INSERT ... SELECT.
    """

    __slots__ = ("_decoded", "_finish", "_found", "_limits", "_ordering", "_step", "source")

    def __init__(
        self, found: Select, slots: list[ParamSlot], results: tuple[int, ...] | None
    ) -> None:
        self._found = found
        self.source = Source(found.access, found.series, slots, reverse=found.reverse)
        if found.grouped:
            self._step = group_step(found, slots)
            self._finish: Step | None = group_output(found, slots, results)
        else:
            self._step = rows_step(found, slots, results)
            self._finish = None
        self._decoded = reads_rows(found)
        self._limits = limit_function(found, slots)
        self._ordering = Ordering(found)

    def gatherer(self, session: SessionLike, values: Any) -> Gatherer:
        """A fresh one. Raises 2201W, 2201X."""
        limit, offset = self._limits(session, values) if self._limits is not None else (None, 0)
        if limit is not None and limit < 0:
            raise CallerMistake("LIMIT must not be negative", sqlstate="2201W")
        if offset is not None and offset < 0:
            raise CallerMistake("OFFSET must not be negative", sqlstate="2201X")
        return Gatherer(self._ordering, limit, offset or 0)

    def read_now(
        self, session: SessionLike, values: Any, txn: Transaction | None, gatherer: Gatherer
    ) -> list[Any] | None:
        """All entries in one synchronous step, or None if that is too much."""
        cursor = self.source.cursor(session, values)
        step, decoded = self._step, self._decoded
        groups, extreme = self._groups(), self._found.extreme
        entries: list[Any] = []
        read = 0
        while not cursor.done and not gatherer.is_full():
            try:
                batch = (cursor.next_rows if decoded else cursor.next)(txn)  # type: ignore[arg-type]
            except PageMiss:
                # This step begins anew when the page is here. Again and again for many pages that
                # costs their square; what goes on where it stopped does not.
                if read < REREAD_ROWS_MAX:
                    raise
                return None
            read += len(batch) + 2
            if read > ROWS_PER_STEP and not cursor.done:
                return None
            if groups is not None:
                step(session, values, batch, groups)
                if extreme and groups[()][0] is not None:
                    break
            else:
                found: list[Any] = []
                step(session, values, batch, found, gatherer.seen)
                entries += gatherer.add(found)
        if groups is not None:
            entries += gatherer.add(self._finished(session, values, list(groups.items()), gatherer))
        for rows in gatherer.slices():
            entries += rows
        return entries

    async def entries(
        self, session: SessionLike, values: Any, txn: Transaction
    ) -> AsyncIterator[list[Any]]:
        """All entries, in lists, over many turns of the loop."""
        gatherer = self.gatherer(session, values)
        async for found in self.gathered(session, values, txn, gatherer):
            yield found

    async def gathered(
        self, session: SessionLike, values: Any, txn: Transaction, gatherer: Gatherer
    ) -> AsyncIterator[list[Any]]:
        """As `entries`, through a gatherer that counts."""
        if self._finish is not None:
            groups = await self._grouped(session, values, txn)
            waiting = list(groups.items())
            for start in range(0, len(waiting), ROWS_PER_STEP):
                part = waiting[start : start + ROWS_PER_STEP]
                yield gatherer.add(self._finished(session, values, part, gatherer))
                await session.engine.clock.sleep(0)
        elif not gatherer.is_full():
            step = self._step
            async for batch in self._batches(session, values, txn):
                entries: list[Any] = []
                step(session, values, batch, entries, gatherer.seen)
                yield gatherer.add(entries)
                if gatherer.is_full():
                    break
        for rows in gatherer.slices():
            yield rows
            await session.engine.clock.sleep(0)

    def _batches(self, session: SessionLike, values: Any, txn: Transaction) -> AsyncIterator[Any]:
        cursor = self.source.cursor(session, values)
        return batches(cursor, txn, session, decoded=self._decoded)

    def _groups(self) -> dict[Any, Any] | None:
        if self._finish is None:
            return None
        return {} if self._found.groups else {(): aggregates.initial(self._found.aggregates)}

    async def _grouped(self, session: SessionLike, values: Any, txn: Transaction) -> dict[Any, Any]:
        found = self._found
        groups = self._groups()
        assert groups is not None
        work = Work("GROUP BY")
        counted = 0
        step = self._step
        sets = [a.index for a in found.aggregates if a.distinct]
        unmeasured = 0
        async for batch in self._batches(session, values, txn):
            step(session, values, batch, groups)
            if found.extreme and groups[()][0] is not None:
                break
            if len(groups) > counted:
                added = len(groups) - counted
                counted = len(groups)
                work.add(added * (2 * ENTRY_BYTES + 64 * len(found.groups)))
            unmeasured += len(batch)
            if sets and unmeasured * ENTRY_BYTES > gather.WORK_BYTES_MAX // 8:
                # At most this often: it looks at every group.
                unmeasured = 0
                size = sum(len(state[i]) for state in groups.values() for i in sets)
                Work("DISTINCT").add(size * ENTRY_BYTES)
        return groups

    def _finished(
        self, session: SessionLike, values: Any, groups: Batch, gatherer: Gatherer
    ) -> list[Any]:
        entries: list[Any] = []
        wanted = self._found.aggregates
        done = [(key, aggregates.finish(wanted, state)) for key, state in groups]
        assert self._finish is not None
        self._finish(session, values, done, entries, gatherer.seen)
        return entries


_NOT_MADE: Any = None


class SelectBound(Bound):
    """A SELECT with its formats."""

    __slots__ = ("_decode", "_make", "_reader")

    def __init__(
        self,
        plan: Plan,
        found: Select,
        slots: list[ParamSlot],
        params: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        run: Callable[[Any, Params], bytes | None] | None = None
        if is_point(found):
            run = point_select(found, slots, params, results)
        elif plan.fast:
            run = self._run
        super().__init__(plan, results, run)
        # Compiling costs a few hundred microseconds, and a point SELECT never needs it.
        self._make: Callable[[], tuple[Any, Reader]] = lambda: (
            param_decoder(slots, params),
            Reader(found, slots, results),
        )
        self._decode: Callable[[Any], Any] = _NOT_MADE
        self._reader: Reader = _NOT_MADE
        if not is_point(found):
            self._prepare()

    def _prepare(self) -> None:
        if self._reader is _NOT_MADE:
            self._decode, self._reader = self._make()

    def _run(self, session: SessionLike, params: Params) -> bytes | None:
        """One synchronous step, or None if there is more than that to do."""
        values = self._decode(params)
        txn = session.txn
        if txn is not None or self._reader.source.tree is None:
            return self._run_in(session, values, txn)
        own = session.engine.begin(read_only=True, reuse=session.settings.reuse)
        try:
            own.start_statement()
            return self._run_in(session, values, own)
        finally:
            session.engine.rollback(own)

    def _run_in(self, session: SessionLike, values: Any, txn: Transaction | None) -> bytes | None:
        gatherer = self._reader.gatherer(session, values)
        entries = self._reader.read_now(session, values, txn, gatherer)
        if entries is None:
            return None
        entries.append(command_complete(f"SELECT {gatherer.count}"))
        return b"".join(entries)

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        self._prepare()
        values = self._decode(params)
        txn = session.txn
        assert txn is not None
        gatherer = self._reader.gatherer(session, values)
        output = Output(sink)
        async for rows in self._reader.gathered(session, values, txn, gatherer):
            await output.add(rows)
        await output.flush()
        return f"SELECT {gatherer.count}"


def is_point(found: Select) -> bool:
    """Whether one generated function can do all of it."""
    return (
        found.access is not None
        and bool(found.access.point)
        and not found.grouped
        and found.limit is None
        and found.offset is None
    )


def is_fast(found: Select) -> bool:
    """Whether it is worth trying in one step."""
    access = found.access
    if access is None or access.is_bounded or found.extreme:
        return True
    # The first rows in key order; a filter may make it read everything to find them.
    return found.limit is not None and not found.order and not found.grouped and not access.rest


def limit_function(found: Select, slots: list[ParamSlot]) -> Callable[[Any, Any], Any] | None:
    """``limits(session, P)``: LIMIT and OFFSET; None if there are none."""
    if found.limit is None and found.offset is None:
        return None
    out = start_step(slots)
    parts = []
    for node in (found.limit, found.offset):
        assert node is None or is_constant(node)
        parts.append("None" if node is None else node.emit(out))
    out.line(f"return ({parts[0]}, {parts[1]})")
    return compile_function("limits", "session, P", out)
