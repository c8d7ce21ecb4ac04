"""INSERT with many rows of plain literals or parameters: read row by row, without a syntax tree.

    INSERT INTO t (a, b) VALUES (1, 'x'), (2, NULL), ...           simple protocol
    INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4), ...            extended protocol

The head and the first row are planned as ``INSERT INTO t (a, b) VALUES ($1, $2)``; one regular
expression then makes sure that everything else is rows of the same kind. Rows of literals are read,
decoded and inserted a few at a time, so that a statement of 16 MiB holds nobody up; rows of
parameters are kept as places in the list of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

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
from compute.sql.rowcode import decoder, param_decoder
from compute.sql.types import BOOL, PARSERS, STRINGS, SqlType, display
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
_PLACE_SOURCE = rf"(?:{_ITEM_SOURCE}|\$[0-9]++)"
_PLACES_SOURCE = rf"\(\s*+{_PLACE_SOURCE}\s*+(?:,\s*+{_PLACE_SOURCE}\s*+)*+\)"
_PLACE_ROWS = re.compile(
    rf"{_PLACES_SOURCE}\s*+(?:,\s*+{_PLACES_SOURCE}\s*+)*+;?\s*+", re.IGNORECASE
)
_PLACE_ROW = re.compile(_PLACES_SOURCE, re.IGNORECASE)
_PLACE = re.compile(_PLACE_SOURCE, re.IGNORECASE)
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


def recognise_parameters(text: str) -> BulkText | None:
    """As `recognise`, for rows that hold parameters too."""
    if len(text) < TEXT_CHARS_MIN or "$" not in text:
        return None
    head = _HEAD.match(text)
    if head is None or _PLACE_ROWS.fullmatch(text, head.end()) is None:
        return None
    first = _PLACE_ROW.match(text, head.end())
    assert first is not None
    return BulkText(head.group(), len(_PLACE.findall(first.group())), text, head.end())


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


class Places(NamedTuple):
    """Rows of parameters: each a tuple of indexes into the parameters and the literals."""

    rows: list[tuple[int, ...]]
    types: list[SqlType]
    literals: list[Any]


def places(
    found: BulkText, slots: list[ParamSlot], declared: tuple[SqlType | None, ...]
) -> Places | None:
    """The rows of a text with parameters; None if a parameter would need a conversion."""
    kinds = [slot.type for slot in slots]
    types: dict[int, SqlType] = {}
    literals: list[Any] = []
    rows: list[tuple[int, ...]] = []
    for match in _PLACE_ROW.finditer(found.text, found.start):
        items = _PLACE.findall(match.group())
        if len(items) != len(kinds):
            raise CallerMistake("VALUES lists must all be the same length", sqlstate="42601")
        row: list[int] = []
        for item, kind in zip(items, kinds):
            if item[0] != "$":
                literals.append(_literal(item, kind))
                row.append(-len(literals))
                continue
            index = int(item[1:]) - 1
            known = types.setdefault(index, kind)
            given = declared[index] if index < len(declared) else None
            if known is not kind or given not in (None, kind) or not 0 <= index < 65535:
                return None
            row.append(index)
        rows.append(tuple(row))
    count = len(types)
    if sorted(types) != list(range(count)):
        return None
    # Literals stand behind the parameters.
    moved = [tuple(i if i >= 0 else count - 1 - i for i in row) for row in rows]
    return Places(moved, [types[index] for index in range(count)], literals)


def _literal(item: str, kind: SqlType) -> Any:
    text = item[1:-1].replace("''", "'") if item[0] == "'" else _converter(kind)(item)
    return None if text is None else PARSERS[kind](text)


class PlacesBound(Bound):
    """INSERT of rows of parameters. ``insert`` is generated for one row of values."""

    __slots__ = ("_decode", "_insert", "_places", "_table")

    def __init__(
        self,
        plan: Plan,
        table: Table,
        found: Places,
        params: tuple[int, ...],
        insert: Callable[..., int],
    ) -> None:
        super().__init__(plan, (), self._run)
        self._table = table
        self._places = found
        self._insert = insert
        self._decode = [decoder(kind, form) for kind, form in zip(found.types, params)]

    def _values(self, params: Params) -> list[Any]:
        values = [None if raw is None else decode(raw) for raw, decode in zip(params, self._decode)]
        return values + self._places.literals

    def _run(self, session: SessionLike, params: Params) -> bytes | None:
        if len(self._places.rows) > ROWS_NOW_MAX:
            return None
        values = self._values(params)
        for row in self._places.rows:
            self._insert(session, [values[i] for i in row], session.txn, (), None)
        return command_complete(f"INSERT 0 {len(self._places.rows)}")

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        await check_current(session, self._table, self.plan.catalog_version)
        values = self._values(params)
        for number, row in enumerate(self._places.rows, 1):
            while True:
                try:
                    self._insert(session, [values[i] for i in row], session.txn, (), None)
                    break
                except Suspend as suspend:
                    await resumed(suspend)
                    await check_current(session, self._table, self.plan.catalog_version)
            if number % ROWS_PER_SLICE == 0:
                await session.engine.clock.sleep(0)
        return f"INSERT 0 {len(self._places.rows)}"


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
