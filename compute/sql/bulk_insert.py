"""INSERT with many rows of plain literals: read row by row, without a syntax tree.

    INSERT INTO t (a, b) VALUES (1, 'x'), (2, NULL), ...

The head and the first row are planned as ``INSERT INTO t (a, b) VALUES ($1, $2)``; one regular
expression then makes sure that everything else is rows of the same kind. The rows themselves are
read, decoded and inserted a few at a time, so that a statement of 16 MiB holds nobody up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final, NamedTuple

from compute.buffer.waits import Suspend, resumed
from compute.sql import numerics
from compute.sql.catalog import Table, check_current
from compute.sql.expressions import ParamSlot
from compute.sql.plan import (
    LITERAL_FORMAT,
    Bound,
    Params,
    Plan,
    RowSink,
    SessionLike,
    command_complete,
)
from compute.sql.rowcode import param_decoder
from compute.sql.types import BOOL, STRINGS, SqlType, display
from polarless.errors import CallerMistake

TEXT_CHARS_MIN: Final = 600
ROWS_NOW_MAX: Final = 300
ROWS_PER_SLICE: Final = 200

_NAME = r"(?:[A-Za-z_][\w$]*|\"[^\"]+\")"
_HEAD = re.compile(
    rf"\s*insert\s+into\s+{_NAME}(?:\s*\.\s*{_NAME})?"
    rf"(?:\s*\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?\s*values\s*(?=\()",
    re.IGNORECASE,
)
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?+"
_ITEM_SOURCE = rf"(?:'[^']*+(?:''[^']*+)*+'|{_NUMBER}|null\b|true\b|false\b)"
_ROW_SOURCE = rf"\(\s*+{_ITEM_SOURCE}\s*+(?:,\s*+{_ITEM_SOURCE}\s*+)*+\)"
_ROWS = re.compile(rf"{_ROW_SOURCE}\s*+(?:,\s*+{_ROW_SOURCE}\s*+)*+;?\s*+", re.IGNORECASE)
_ROW = re.compile(_ROW_SOURCE, re.IGNORECASE)
_ITEM = re.compile(_ITEM_SOURCE, re.IGNORECASE)


class BulkText(NamedTuple):
    """A text that is such an INSERT."""

    head: str
    width: int
    text: str
    start: int


def recognise(text: str) -> BulkText | None:
    """None if it is anything else, or short."""
    if len(text) < TEXT_CHARS_MIN:
        return None
    head = _HEAD.match(text)
    if head is None or _ROWS.fullmatch(text, head.end()) is None:
        return None
    first = _ROW.match(text, head.end())
    assert first is not None
    return BulkText(head.group(), len(_ITEM.findall(first.group())), text, head.end())


def template(found: BulkText) -> str:
    """The head with one row of parameters."""
    return f"{found.head}({', '.join(f'${i + 1}' for i in range(found.width))})"


class BulkInsertBound(Bound):
    """Its parameters are the text and where its rows begin. ``insert`` is generated for one row."""

    __slots__ = ("_converters", "_decode", "_insert", "_table", "_width")

    def __init__(
        self, plan: Plan, table: Table, slots: list[ParamSlot], insert: Callable[..., int]
    ) -> None:
        super().__init__(plan, (), self._run)
        self._table = table
        self._insert = insert
        self._width = len(slots)
        self._decode = param_decoder(slots, (LITERAL_FORMAT,) * len(slots))
        self._converters = [_converter(slot.type) for slot in slots]

    def _run(self, session: SessionLike, params: Params) -> bytes | None:
        text, start = params
        if len(text) - start > 20_000 or text.count(")", start) > ROWS_NOW_MAX:
            return None
        count = sum(self._one(session, row) for row in _ROW.finditer(text, start))
        return command_complete(f"INSERT 0 {count}")

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        text, start = params
        await check_current(session, self._table, self.plan.catalog_version)
        count = 0
        for number, row in enumerate(_ROW.finditer(text, start), 1):
            while True:
                try:
                    count += self._one(session, row)
                    break
                except Suspend as suspend:
                    await resumed(suspend)
                    await check_current(session, self._table, self.plan.catalog_version)
            if number % ROWS_PER_SLICE == 0:
                await session.engine.clock.sleep(0)
        return f"INSERT 0 {count}"

    def _one(self, session: SessionLike, row: re.Match[str]) -> int:
        items = _ITEM.findall(row.group())
        if len(items) != self._width:
            raise CallerMistake("VALUES lists must all be the same length", sqlstate="42601")
        values = [
            item[1:-1].replace("''", "'") if item[0] == "'" else convert(item)
            for item, convert in zip(items, self._converters)
        ]
        return self._insert(session, self._decode(values), session.txn, (), None)


def _converter(kind: SqlType) -> Callable[[str], str | None]:
    """From an item that is no string to a literal that the column's parser takes."""

    def convert(item: str) -> str | None:
        small = item.lower()
        if small == "null":
            return None
        is_truth = small in ("true", "false")
        if is_truth != (kind is BOOL) and kind not in STRINGS:
            raise _mismatch(kind, item)
        if is_truth:
            return small
        if kind.family == "int" and not item.lstrip("+-").isdigit():
            return str(int(numerics.rounded(Decimal(item), 0)))
        if kind in STRINGS:
            return numerics.numeric_text(numerics.parse_numeric(item))
        if kind.family not in ("int", "float", "numeric"):
            raise _mismatch(kind, item)
        return item

    return convert


def _mismatch(kind: SqlType, item: str) -> CallerMistake:
    given = "boolean" if item.isalpha() else "integer" if item.isdigit() else "numeric"
    return CallerMistake(
        f"a column is of type {display(kind)} but expression is of type {given}",
        sqlstate="42804",
        hint="You will need to rewrite or cast the expression.",
    )
