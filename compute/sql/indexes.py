"""Secondary indexes: what their entries are, and the code that keeps them beside the rows.

    key      the columns' values, as in a key of several columns; behind them the row's key, unless
             the index is unique and no value is NULL
    payload  the row's key

An entry is written in the commit that writes its row, with the same timestamp. So what an index
shows at a snapshot is exactly what the rows are at that snapshot, and no entry has to be checked
against its row. Entries of unique indexes are locked, also those that go away: who inserts the same
value waits until it is known whether it is free. The others need no lock but their row's.

The generated code first takes all locks, which may wait, and only then buffers its writes; so it
can run again from its start.
"""

from __future__ import annotations

from typing import Any, Final

from compute.sql.catalog import ENCODER_NAMES, Index, Table
from compute.sql.expressions import Emitter
from compute.sql.index_parts import bound, condition, is_plain, part_names, parts, touched
from compute.sql.mistakes import duplicate_key, named, not_supported
from compute.sql.types import NUMERIC, to_text
from polarless.errors import CallerMistake
from polarless.kernel import keycode

# As PostgreSQL has it: a third of one of its pages.
KEY_BYTES_MAX: Final = 2704


def check_columns(table: Table, columns: tuple[int, ...]) -> None:
    """Raises 0A000 for types that have no order in a key."""
    for index in columns:
        column = table.columns[index]
        if column.type.family not in ENCODER_NAMES:
            raise not_supported(f"an index on a column of type {column.type.name}")


def values_of(table: Table, key: bytes, index: Index) -> list[str]:
    """The values of an entry's key, printed for an error's DETAIL."""
    return [
        to_text(value, node.type, node.typmod)
        for value, node in zip(keycode.decode(key), parts(table, index))
    ]


def raise_duplicate_entry(table: Table, number: int, key: bytes) -> None:
    """23505 of a unique index."""
    index = table.indexes[number]
    names = part_names(table, index)
    error = duplicate_key(index.name, names, values_of(table, key, index))
    raise named(error, table.schema, table.name)


def too_long_entry(table: Table, number: int, key: bytes) -> CallerMistake:
    """54000: the entry would not fit a page often enough."""
    return CallerMistake(
        f"index row size {len(key)} exceeds btree version 4 maximum {KEY_BYTES_MAX} for index "
        f'"{table.indexes[number].name}"',
        sqlstate="54000",
        detail="Values larger than 1/3 of a buffer page cannot be indexed.",
        hint="Consider an index on a part or a hash of the value.",
    )


def loaded(table: Table, index: int, out: Emitter) -> str:
    """Source for the value of a stored column of ``r``."""
    column = table.columns[index]
    if column.type is not NUMERIC:
        return f"r[{index}]"
    from decimal import Decimal

    out.names["Decimal_"] = Decimal
    if column.not_null:
        return f"Decimal_(r[{index}])"
    return f"(None if r[{index}] is None else Decimal_(r[{index}]))"


def emit_entry(out: Emitter, table: Table, number: int, sources: list[str], name: str) -> None:
    """``name`` = the key of an index's entry; ``key`` is the row's. ``sources`` by column.

    Expressions are computed of ``r``. A row that a partial index has no entry for: None.
    """
    index = table.indexes[number]
    where = condition(table, index)
    if where is None:
        _emit_entry(out, table, number, sources, name)
        return
    out.line(f"{name} = None")
    with out.block(f"if {where.emit(out)} is True"):
        _emit_entry(out, table, number, sources, name)


def _emit_entry(out: Emitter, table: Table, number: int, sources: list[str], name: str) -> None:
    index = table.indexes[number]
    parts, nullable, families = [], [], []
    for position in index.columns:
        if position >= 0:
            column = table.columns[position]
            family, known, source = column.type.family, column.not_null, sources[position]
        else:
            node = bound(table, index.expressions[-1 - position])
            family, known, source = node.type.family, not node.nullable, node.emit(out)
        families.append(family)
        encoder = ENCODER_NAMES[family]
        if known:
            parts.append(f"{encoder}({source})")
        else:
            parts.append(f"(encode_null if {source} is None else {encoder}({source}))")
            nullable.append(source)
    row_key = "encode_int(key)" if table.tree.int_keys else "key"
    out.line(f"{name} = {' + '.join(parts)}")
    if not index.unique:
        out.line(f"{name} += {row_key}")
    elif nullable:
        tests = " or ".join(f"{source} is None" for source in nullable)
        out.line(f"if {tests}: {name} += {row_key}")
    if any(family in ("text", "bytea", "numeric") for family in families):
        out.names |= {"too_long_entry": too_long_entry, "table": table}
        out.line(f"if len({name}) > {KEY_BYTES_MAX}: raise too_long_entry(table, {number}, {name})")


def _names(out: Emitter, table: Table, number: int) -> str:
    out.names |= {
        f"itree{number}": table.indexes[number].tree,
        "table": table,
        "raise_duplicate_entry": raise_duplicate_entry,
    }
    return f"itree{number}"


def emit_new_entries(out: Emitter, table: Table, sources: list[str]) -> None:
    """Keys ``x<n>`` of ``row``'s entries; unique ones are locked and looked up, as ``e<n>``."""
    if not all(map(is_plain, table.indexes)):
        out.line("r = row")
    for number, index in enumerate(table.indexes):
        tree = _names(out, table, number)
        emit_entry(out, table, number, sources, f"x{number}")
        if index.unique:
            test = "" if index.where is None else f"None if x{number} is None else "
            out.line(f"e{number} = {test}txn.lock_and_get({tree}, x{number})")


def emit_refuse_duplicates(out: Emitter, table: Table, but: set[int] | None = None) -> None:
    """23505 for entries that are there already."""
    for number, index in enumerate(table.indexes):
        if index.unique and number not in (but or ()):
            out.line(f"if e{number} is not None: raise_duplicate_entry(table, {number}, x{number})")


def emit_put_entries(out: Emitter, table: Table) -> None:
    """Write the entries of a new row."""
    if table.indexes:
        out.line("entry = pack_row(key)")
    for number in range(len(table.indexes)):
        out.line(f"{_known(table, number, 'x')}txn.put(itree{number}, x{number}, entry)")


def _known(table: Table, number: int, letter: str) -> str:
    """``if`` there is an entry: of a partial index there may be none."""
    return "" if table.indexes[number].where is None else f"if {letter}{number} is not None: "


def concerned(table: Table, columns: set[int] | None) -> list[int]:
    """The indexes that a change of these columns concerns; None: of the key, so all of them."""
    return [
        number
        for number, index in enumerate(table.indexes)
        if columns is None or columns & touched(table, index)
    ]


def emit_old_entries(out: Emitter, table: Table, numbers: list[int]) -> None:
    """Keys ``o<n>`` of the entries of the row ``r``; unique ones are locked."""
    sources = [loaded(table, index, out) for index in range(len(table.columns))]
    for number in numbers:
        tree = _names(out, table, number)
        emit_entry(out, table, number, sources, f"o{number}")
        if table.indexes[number].unique:
            out.line(f"{_known(table, number, 'o')}txn.lock_and_get({tree}, o{number})")


def emit_changed_entries(out: Emitter, table: Table, numbers: list[int]) -> None:
    """After the assignments to ``r``: keys ``x<n>``, with what is taken refused."""
    sources = [loaded(table, index, out) for index in range(len(table.columns))]
    for number in numbers:
        tree = _names(out, table, number)
        emit_entry(out, table, number, sources, f"x{number}")
        if table.indexes[number].unique:
            some = "" if table.indexes[number].where is None else f"x{number} is not None and "
            taken = f"txn.lock_and_get({tree}, x{number}) is not None"
            out.line(
                f"if {some}x{number} != o{number} and {taken}: "
                f"raise_duplicate_entry(table, {number}, x{number})"
            )


def emit_move_entries(out: Emitter, table: Table, numbers: list[int]) -> None:
    """Write what became of the entries of a changed row."""
    if numbers:
        out.line("entry = pack_row(key)")
    for number in numbers:
        with out.block(f"if x{number} != o{number}"):
            out.line(f"{_known(table, number, 'o')}txn.put(itree{number}, o{number}, None)")
            out.line(f"{_known(table, number, 'x')}txn.put(itree{number}, x{number}, entry)")


def emit_drop_entries(out: Emitter, table: Table, numbers: list[int]) -> None:
    """The row is gone, and its entries with it."""
    for number in numbers:
        out.line(f"{_known(table, number, 'o')}txn.put(itree{number}, o{number}, None)")


def entry_row(entry: Any) -> Any:
    """The row's key of an entry's payload."""
    import msgpack

    return msgpack.unpackb(entry)
