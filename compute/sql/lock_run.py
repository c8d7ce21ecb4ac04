"""SELECT ... FOR UPDATE and its kin: rows are found at the snapshot, locked one by one in the order
of the result, read again at their newest version, and given out if WHERE still holds.

Locks have one kind, so FOR SHARE and FOR KEY SHARE lock as FOR UPDATE does. LIMIT counts rows that
were locked: with SKIP LOCKED the next free ones are taken, and no others are locked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from compute.buffer.waits import Suspend, resumed
from compute.sql.expressions import Local, ParamSlot
from compute.sql.gather import Output as Chunks
from compute.sql.plan import Bound, Params, Plan, RowSink, SessionLike, command_complete
from compute.sql.rowcode import (
    base_names,
    compile_function,
    emit_params,
    emit_row,
    param_decoder,
    start_step,
)
from compute.sql.select import Output, Select
from compute.sql.select_run import Reader, limit_function
from compute.sql.types import UNKNOWN
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.btree.tree import Tree
    from compute.txn.transaction import Transaction

ROWS_PER_TURN: Final = 200


def try_lock(txn: Transaction, tree: Tree, key: Any, mode: str, name: str) -> bool:
    """Whether the row may be asked for. False: SKIP LOCKED skips it. Raises 55P03 for NOWAIT."""
    locks = txn.engine.locks
    holder = locks.rows.get(tree.tree_id, {}).get(key)
    if holder is None:
        holder = locks.exclusive.get(tree.tree_id)
    if holder is None or holder is txn:
        return True
    if mode == "skip":
        return False
    raise CallerMistake(
        f'could not obtain lock on row in relation "{name}"',
        sqlstate="55P03",
        hint="Another transaction has it; try again later, or wait without NOWAIT.",
    )


class LockBound(Bound):
    """A SELECT that locks, with its formats."""

    __slots__ = ("_decode", "_found", "_limits", "_lock", "_reader")

    def __init__(
        self,
        plan: Plan,
        found: Select,
        slots: list[ParamSlot],
        params: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        access = found.access
        assert access is not None
        run = self._point(found, slots, params, results) if plan.fast else None
        super().__init__(plan, results, run)
        self._found = found
        self._decode = param_decoder(slots, params)
        keys = replace(
            found,
            outputs=[Output("key", Local("key", UNKNOWN))],
            limit=None,
            offset=None,
        )
        self._reader = Reader(keys, slots, None)
        self._limits = limit_function(found, slots)
        self._lock = self._row(found, slots, results)

    def _row(
        self, found: Select, slots: list[ParamSlot], results: tuple[int, ...]
    ) -> Callable[..., Any]:
        """``lock(session, P, txn, key)``: the DataRow, or None if the row is not for us."""
        out = start_step(slots)
        assert found.access is not None
        self._emit_lock(out, found, nothing="return None")
        nodes = [output.node for output in found.outputs]
        values = [node.emit(out) for node in nodes]
        out.line(f"return {emit_row(out, values, nodes, results)}")
        return compile_function("lock", "session, P, txn, key", out)

    @staticmethod
    def _emit_lock(out: Any, found: Select, *, nothing: str) -> None:
        access = found.access
        assert access is not None
        table = access.table
        out.names |= {"tree": table.tree, "try_lock": try_lock}
        if found.lock != "wait":
            out.line(f"if not try_lock(txn, tree, key, {found.lock!r}, {table.name!r}): {nothing}")
        out.line("payload = txn.lock_and_get(tree, key)")
        out.line(f"if payload is None: {nothing}")
        out.line("r = unpack(payload)")
        for node in found.conditions:
            out.line(f"if {node.emit(out)} is not True: {nothing}")

    def _point(
        self,
        found: Select,
        slots: list[ParamSlot],
        params: tuple[int, ...],
        results: tuple[int, ...],
    ) -> Callable[[Any, Params], bytes | None]:
        """By the full primary key, in one synchronous step."""
        assert found.access is not None
        from compute.sql.expressions import Emitter

        out = Emitter(base_names())
        emit_params(out, slots, params)
        nothing = f"return {command_complete('SELECT 0')!r}"
        out.line(f"key = {found.access.emit_point(out, empty=nothing)}")
        out.line("txn = session.txn")
        self._emit_lock(out, found, nothing=nothing)
        nodes = [output.node for output in found.outputs]
        values = [node.emit(out) for node in nodes]
        row = emit_row(out, values, nodes, results)
        out.line(f"return {row} + {command_complete('SELECT 1')!r}")
        return compile_function("run", "session, params", out)

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        values = self._decode(params)
        txn = session.txn
        assert txn is not None
        limit, offset = self._limits(session, values) if self._limits is not None else (None, 0)
        offset = offset or 0
        if limit is not None and limit < 0:
            raise CallerMistake("LIMIT must not be negative", sqlstate="2201W")
        if offset < 0:
            raise CallerMistake("OFFSET must not be negative", sqlstate="2201X")
        output = Chunks(sink)
        count = skipped = looked = 0
        async for entries in self._reader.entries(session, values, txn):
            for (key,) in entries:
                if limit is not None and count >= limit:
                    break
                row = await self._locked(session, values, txn, key)
                looked += 1
                if looked % ROWS_PER_TURN == 0:
                    await session.engine.clock.sleep(0)
                if row is None:
                    continue
                if skipped < offset:
                    skipped += 1
                    continue
                count += 1
                await output.add([row])
            if limit is not None and count >= limit:
                break
        await output.flush()
        return f"SELECT {count}"

    async def _locked(self, session: SessionLike, values: Any, txn: Transaction, key: Any) -> Any:
        while True:
            try:
                return self._lock(session, values, txn, key)
            except Suspend as suspend:
                await resumed(suspend)
