"""Functions that give several rows: generate_series(), jsonb_array_elements(), ...

Each makes a list for each column, by our own code, and DuckDB unnests the lists side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compute.sql import numerics, scalars
from compute.sql.analytics.carriers import Carrier
from compute.sql.analytics.leaves import Leaf
from compute.sql.analytics.regtypes import REG_TYPES
from compute.sql.arraytypes import array_of
from compute.sql.builtins import jsons, regexes, texts
from compute.sql.builtins.signatures import Signature, loose, matching, plain
from compute.sql.builtins.signatures import make as make_call
from compute.sql.casts import cast
from compute.sql.expressions import Node, Strict, call
from compute.sql.types import (
    DATE,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    OID,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    SqlType,
    to_text,
)
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.analytics.binder import AnalyticBinder

ROWS_MAX: Final = 1_000_000


class Column(NamedTuple):
    """One column: its name (empty: the function's), its type, and the functions that make its list,
    by the types of their arguments."""

    name: str
    kind: SqlType
    signatures: tuple[Signature, ...]


def _list(kind: SqlType) -> SqlType:
    found = array_of(kind)
    assert found is not None
    return found


def _elements(printer: Callable[[Any], str | None]) -> Callable[[str], list[Any]]:
    def elements(text: str) -> list[Any]:
        return [printer(item) for item in jsons.elements(text)]

    return elements


def _keys(name: str, printer: Callable[[Any], str]) -> Callable[[str], list[Any]]:
    def keys(text: str) -> list[Any]:
        return [key for key, _ in _items(text, name, printer)]

    return keys


def _values(
    name: str, printer: Callable[[Any], str], *, as_text: bool = False
) -> Callable[[str], list[Any]]:
    def values(text: str) -> list[Any]:
        found = _items(text, name, printer)
        if as_text:
            return [jsons.as_text(item, printer) for _, item in found]
        return [printer(item) for _, item in found]

    return values


def _items(text: str, name: str, printer: Callable[[Any], str]) -> list[tuple[str, Any]]:
    found = jsons.items_of(text, name)
    return found if printer is scalars.json_text else scalars.sorted_items(dict(found))


def _matches(text: str, pattern: str, flags: str = "") -> list[str]:
    return [to_text(groups, texts.TEXTS) for groups in regexes.matches(text, pattern, flags)]


def _of(kind: SqlType, function: Callable[..., Any], *counts: int) -> tuple[Signature, ...]:
    args = (TEXT, TEXT, TEXT)
    return tuple(plain(args[:count], _list(kind), function) for count in counts)


def _json_columns() -> dict[str, tuple[Column, ...]]:
    found: dict[str, tuple[Column, ...]] = {}
    for kind, prefix, printer in (
        (JSONB, "jsonb", jsons.text_of),
        (JSON, "json", scalars.json_text),
    ):

        def one(result: SqlType, function: Any, kind: SqlType = kind) -> tuple[Signature, ...]:
            return (plain((kind,), _list(result), function),)

        def text_of(item: Any, printer: Any = printer) -> str | None:
            return jsons.as_text(item, printer)

        found[f"{prefix}_array_elements"] = (Column("value", kind, one(kind, _elements(printer))),)
        found[f"{prefix}_array_elements_text"] = (
            Column("value", TEXT, one(TEXT, _elements(text_of))),
        )
        for suffix, result in (("each", kind), ("each_text", TEXT)):
            name = f"{prefix}_{suffix}"
            as_text = suffix == "each_text"
            found[name] = (
                Column("key", TEXT, one(TEXT, _keys(name, printer))),
                Column("value", result, one(result, _values(name, printer, as_text=as_text))),
            )
        name = f"{prefix}_object_keys"
        found[name] = (Column("", TEXT, one(TEXT, _keys(name, printer))),)
    return found


SETS: Final[dict[str, tuple[Column, ...]]] = {
    **_json_columns(),
    # Of tables that are no partitions, which all are.
    "pg_partition_ancestors": (
        Column("relid", REG_TYPES["regclass"], (plain((OID,), _list(OID), lambda table: []),)),
    ),
    "regexp_matches": (Column("", texts.TEXTS, _of(TEXT, _matches, 2, 3)),),
    "regexp_split_to_table": (Column("", TEXT, _of(TEXT, regexes.split, 2, 3)),),
    "string_to_table": (
        Column(
            "",
            TEXT,
            (
                loose((TEXT, TEXT), _list(TEXT), texts.text_to_array),
                loose((TEXT, TEXT, TEXT), _list(TEXT), texts.text_to_array),
            ),
        ),
    ),
}


Lists = tuple[list[str], list[Leaf]]


def bind(binder: AnalyticBinder, name: str, args: list[Node]) -> Lists | None:
    """The lists of a function's columns, and what is in them; None if it is none of ours."""
    columns = SETS.get(name)
    if columns is None:
        return None
    lists, leaves = [], []
    for column in columns:
        found = matching(column.signatures, args)
        if found is None:
            return None
        value = binder.low.value(make_call(*found))
        carrier: Carrier = value.carrier.element
        if column.kind is texts.TEXTS:
            carrier = Carrier("VARCHAR", "printed", type=texts.TEXTS)
        lists.append(value.sql)
        leaves.append(Leaf("c0", carrier, column.kind))
    return lists, leaves


# --------------------------------------------------------------------------------- generate_series


def series(args: list[Node]) -> Node | None:
    """generate_series() of times or numerics, as a list; None for integers."""
    kinds = {arg.type for arg in args} - {UNKNOWN}
    if kinds & {DATE, TIMESTAMP, TIMESTAMPTZ} and len(args) == 3:
        kind = TIMESTAMP if kinds & {TIMESTAMP} and TIMESTAMPTZ not in kinds else TIMESTAMPTZ
        nodes = (cast(args[0], kind), cast(args[1], kind), cast(args[2], INTERVAL))
        function = scalars.timestamp_plus if kind is TIMESTAMP else scalars.moment_plus
        return Strict(nodes, call(_stepper(function)), _list(kind))
    if NUMERIC in kinds:
        numbers = tuple(cast(arg, NUMERIC) for arg in args)
        return Strict(numbers, call(_numbers), _list(NUMERIC))
    return None


def _stepper(plus: Callable[[int, bytes], int]) -> Callable[[int, int, bytes], list[int]]:
    def times(start: int, stop: int, step: bytes) -> list[int]:
        forward = plus(start, step) > start
        if plus(start, step) == start:
            raise CallerMistake("step size cannot equal zero", sqlstate="22023")
        found, value = [], start
        while (value <= stop) if forward else (value >= stop):
            found.append(value)
            value = plus(value, step)
            _check(found)
        return found

    return times


def _check(found: list[Any]) -> None:
    if len(found) > ROWS_MAX:
        raise CallerMistake(
            f"generate_series of more than {ROWS_MAX} rows of this type",
            sqlstate="54000",
            hint="Use integers, and compute the values from them.",
        )


def _numbers(start: Decimal, stop: Decimal, step: Decimal | None = None) -> list[Decimal]:
    by = Decimal(1) if step is None else step
    if not by:
        raise CallerMistake("step size cannot equal zero", sqlstate="22023")
    found, value = [], start
    while (value <= stop) if by > 0 else (value >= stop):
        found.append(value)
        value = numerics.add_numeric(value, by)
        _check(found)
    return found
