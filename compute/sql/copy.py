"""COPY table [(columns)] FROM STDIN, text, CSV and binary (`copy_binary`).

Data arrives in pieces that may cut a row anywhere. Whole lines are decoded at once, split, and
each row is encoded by a function generated for the table. The usual chunk, without a backslash,
takes the short way; escapes, NULLs and errors are looked at field by field.

A table that is new and empty in this transaction is loaded through `rebuild.Loader` into one more
new tree, which the catalog row names at the end: so ROLLBACK TO finds the table as it was. Any
other table gets ordinary inserts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from compute.buffer.waits import Suspend, resumed
from compute.sql import ddl
from compute.sql.catalog import GENERATED, Catalog, Table, check_current, key_expression
from compute.sql.constraints import Parent, parents_of
from compute.sql.copy_binary import BinaryRows
from compute.sql.copy_options import CopyOptions, copy_options, forced
from compute.sql.expressions import Emitter, Local, Node
from compute.sql.filling import over_values
from compute.sql.mistakes import (
    duplicate_key,
    named,
    not_supported,
    unknown_column,
    unknown_table,
)
from compute.sql.plan import Bound, Plan, SessionLike
from compute.sql.rebuild import Loader, Rows, fill_indexes
from compute.sql.rowcode import base_names, compile_function
from compute.sql.syntax import Token
from compute.sql.types import BINARY_INPUT, INT_BOUNDS, PARSERS, fit
from compute.sql.utility import Reader
from compute.sql.write import complete
from compute.sql.write_run import RowIds, emit_new_row, insert_stored, stored
from polarless.errors import CallerMistake, PolarlessError

if TYPE_CHECKING:
    from compute.txn.transaction import Transaction

# A line that has no end after so many bytes is not a row.
LINE_BYTES_MAX: Final = 17 * 1024 * 1024
ROWS_PER_SLICE: Final = 500


def plan_copy(
    text: str, tokens: list[Token], catalog: Catalog, row_ids: RowIds, version: int
) -> Plan:
    """COPY ... FROM STDIN. Raises 0A000 for its other forms."""
    reader = Reader(tokens)
    reader.expect("copy")
    old_binary = reader.accept("binary")
    schema: str | None = None
    name = reader.name()
    if reader.accept("."):
        schema, name = name, reader.name()
    wanted: list[str] | None = None
    if reader.accept("("):
        wanted = [reader.name()]
        while reader.accept(","):
            wanted.append(reader.name())
        reader.expect(")")
    reader.expect("from")
    if reader.peek is None:
        reader.next()  # raises
    if not reader.accept("stdin"):
        raise not_supported("COPY FROM a file or program", hint="Use psql's \\copy, or FROM STDIN.")
    options = copy_options(reader)
    options.binary = options.binary or old_binary
    table = catalog.find(name, schema)
    if table is None and catalog.view(name, schema) is not None:
        raise CallerMistake(f'cannot copy to view "{name}"', sqlstate="42809")
    if table is None:
        raise unknown_table(f"{schema}.{name}" if schema else name)
    columns = [i for i, column in enumerate(table.columns) if column.identity != GENERATED]
    if wanted is not None:
        for column in wanted:
            if column not in table.index:
                raise unknown_column(column, table.name)
            if table.columns[table.index[column]].identity == GENERATED:
                raise generated_in_copy(column)
            if wanted.count(column) > 1:
                raise CallerMistake(f'column "{column}" specified more than once', sqlstate="42701")
        columns = [table.index[column] for column in wanted]
    names = [table.columns[i].name for i in columns]
    nulls = (
        forced(options.force_null, names, "force_null"),
        forced(options.force_not_null, names, "force_not_null"),
    )
    where = _condition(text, reader)
    parents = parents_of(table, catalog)
    return Plan(
        "copy_in",
        catalog_version=version,
        writes=True,
        verb="COPY FROM",
        binder=lambda plan, params, results: CopyBound(
            plan, results, table, columns, options, row_ids, parents, nulls, where
        ),
    )


def _condition(text: str, reader: Reader) -> str | None:
    """The text of WHERE."""
    if not reader.accept("where"):
        return None
    first = reader.peek
    if first is None:
        reader.next()  # raises
    assert first is not None
    return text[first.start : reader.tokens[-1].end]


def generated_in_copy(column: str) -> CallerMistake:
    """42P10."""
    return CallerMistake(
        f'column "{column}" is a generated column',
        sqlstate="42P10",
        detail="Generated columns cannot be used in COPY.",
    )


class CopyBound(Bound):
    """COPY FROM STDIN into one table."""

    __slots__ = ("_columns", "_encode", "_nulls", "_options", "_parents", "_row_ids", "_table")

    def __init__(
        self,
        plan: Plan,
        results: tuple[int, ...],
        table: Table,
        columns: list[int],
        options: CopyOptions,
        row_ids: RowIds,
        parents: list[Parent],
        nulls: tuple[set[int], set[int]] = (set(), set()),
        where: str | None = None,
    ) -> None:
        super().__init__(plan, results, None)
        # The columns of FORCE_NULL and FORCE_NOT_NULL.
        self._nulls = nulls
        self._parents = parents
        self._table = table
        self._columns = columns
        self._options = options
        self._row_ids = row_ids
        self._encode = encoder(table, columns, binary=options.binary, where=where)

    def copy(self, session: SessionLike) -> CopyRun:
        """See `Bound.copy`."""
        run = CopyRun(
            session, self._table, self._columns, self._options, self._row_ids, self._encode
        )
        run.parents = self._parents
        run.nulls = self._nulls
        return run


Encode = Callable[[Any, list[Any], Callable[[], int], Any, bool], None]


def encoder(
    table: Table, columns: list[int], *, binary: bool = False, where: str | None = None
) -> Encode:
    """``encode(session, lines, next_id, append, strict)``: fields in, ``(key, payload)`` out.

    ``lines`` are lists of fields, str or None. Unless ``strict``, an integer goes by int() alone.
    """
    out = Emitter(base_names())
    names = [f"f{i}" for i in range(len(columns))]
    # The fields are values already when the columns are completed with defaults.
    given: list[Node | None] = [
        Local(names[i], table.columns[c].type, table.columns[c].typmod)
        for i, c in enumerate(columns)
    ]
    nodes = complete(table, columns, given)
    out.line("for fields in lines:")
    out.indent += 1
    out.names["wrong_count"] = _wrong_count
    if names:
        with out.block("try"):
            out.line(f"({', '.join(names)},) = fields")
        with out.block("except ValueError"):
            out.line("raise wrong_count(table, columns, fields) from None")
    out.names |= {
        "table": table, "columns": columns, "value_of": _binary_value if binary else _value_of,
    }  # fmt: skip
    for name, index in zip(names, columns):
        column = table.columns[index]
        with out.block(f"if {name} is not None"):
            bounds = INT_BOUNDS.get(column.type)
            if binary:
                out.line(f"{name} = value_of(table, {index}, {name})")
            elif bounds is not None:
                with out.block("if strict"):
                    out.line(f"{name} = value_of(table, {index}, {name})")
                with out.block("else"):
                    out.line(f"{name} = int({name})")
                    out.line(
                        f"if not {bounds[0]} <= {name} <= {bounds[1]}: "
                        f"value_of(table, {index}, str({name}))"
                    )
            elif column.type.family == "text" and column.typmod >= 4:
                test = f"len({name}) > {column.typmod - 4} or {name}[-1:] == ' '"
                out.line(f"if {test}: {name} = value_of(table, {index}, {name})")
            elif column.type.name != "text":
                out.line(f"{name} = value_of(table, {index}, {name})")
    values = emit_new_row(out, table, nodes)
    if where is not None:
        out.line(f"if {over_values(table, where).emit(out)} is not True: continue")
    key = key_expression(table, values) if table.primary_key else "next_id()"
    out.line(f"append(({key}, pack_row({stored(table, values)})))")
    return compile_function("encode", "session, lines, next_id, append, strict", out)


def _wrong_count(table: Table, columns: list[int], fields: list[Any]) -> CallerMistake:
    if len(fields) < len(columns):
        missing = table.columns[columns[len(fields)]].name
        return CallerMistake(f'missing data for column "{missing}"', sqlstate="22P04")
    return CallerMistake("extra data after last expected column", sqlstate="22P04")


def _value_of(table: Table, index: int, text: str) -> Any:
    """A field as a value of its column, the strict way."""
    column = table.columns[index]
    try:
        return fit(PARSERS[column.type](text), column.type, column.typmod)
    except PolarlessError as error:
        error.context = f'COPY {table.name}, column {column.name}: "{text[:100]}"'
        raise


def _binary_value(table: Table, index: int, raw: bytes) -> Any:
    """The same of a field in binary."""
    column = table.columns[index]
    try:
        return fit(BINARY_INPUT[column.type](raw), column.type, column.typmod)
    except PolarlessError as error:
        error.context = f"COPY {table.name}, column {column.name}"
        raise


class CopyRun:
    """One COPY under way; `compute.sql.plan.CopyIn`."""

    def __init__(
        self,
        session: SessionLike,
        table: Table,
        columns: list[int],
        options: CopyOptions,
        row_ids: RowIds,
        encode: Encode,
    ) -> None:
        self.column_count = len(columns)
        self.binary = options.binary
        self._binary = BinaryRows(LINE_BYTES_MAX) if options.binary else None
        self._session = session
        self._table = table
        self._options = options
        self._row_ids = row_ids
        self._encode = encode
        # What the table's foreign keys refer to.
        self.parents: list[Parent] = []
        self.nulls: tuple[set[int], set[int]] = (set(), set())
        self._columns = columns
        self._insert: Callable[..., None] | None = None
        self._rest = b""
        self._ended = False
        self._line = 0
        self._version = session.engine.catalog_version
        self._rows = 0
        self._header = options.header
        self._loader: Loader | None = None
        self._next_id: Callable[[], int] | None = None
        self._quoted: str | None = None
        txn = ddl.transaction_of(session)
        found = txn.new_trees.get(table.tree.tree_id)
        fresh = found is not None and not found[1] and not txn.writes.get(table.tree.tree_id)
        if fresh and not table.checks and not table.foreign:
            self._loader = Loader(session, int_keys=table.tree.int_keys, duplicate=self._duplicate)
            if not table.primary_key:
                counter = iter(range(1, 1 << 62))
                self._next_id = counter.__next__

    def _duplicate(self, key: Any) -> CallerMistake:
        table = self._table
        error = duplicate_key(table.constraint, table.key_names, table.key_values(key))
        return named(error, table.schema, table.name)

    async def write(self, data: bytes) -> None:
        """See `CopyIn.write`."""
        if self._ended:
            return
        if self._binary is not None:
            await self._take_rows(self._binary.feed(data), strict=True)
            return
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > LINE_BYTES_MAX:
            raise CallerMistake(f"a line of COPY exceeds {LINE_BYTES_MAX} bytes", sqlstate="54000")
        if end:
            await self._take(data[:end])

    async def finish(self) -> str:
        """See `CopyIn.finish`."""
        if self._rest and not self._ended:
            rest, self._rest = self._rest, b""
            await self._take(rest + b"\n")
        if self._binary is not None:
            self._binary.finish()
        if self._quoted is not None:
            raise CallerMistake("unterminated CSV quoted field", sqlstate="22P04")
        if self._loader is not None:
            tree = await self._loader.finish()
            session, table = self._session, self._table
            session.engine.drop_tree(ddl.transaction_of(session), table.tree)
            ddl.store(session, await fill_indexes(session, table.with_tree(tree)))
        return f"COPY {self._rows}"

    async def abort(self) -> None:
        """See `CopyIn.abort`: what was loaded goes with the transaction."""
        self._rest = b""
        self._loader = None

    async def _take(self, data: bytes) -> None:
        """Whole lines."""
        try:
            text = data.decode(self._options.encoding)
        except UnicodeDecodeError as error:
            raise CallerMistake(
                f'invalid byte sequence for encoding "UTF8": 0x{data[error.start]:02x}',
                sqlstate="22021",
            ) from None
        if "\0" in text:
            raise CallerMistake('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
        lines = self._csv(text) if self._options.csv else self._text(text)
        await self._take_rows(lines, strict="_" in text or not text.isascii())

    async def _take_rows(self, lines: list[Any], *, strict: bool) -> None:
        """Whole rows, cut into fields."""
        sleep = self._session.engine.clock.sleep
        for start in range(0, len(lines), ROWS_PER_SLICE):
            part = lines[start : start + ROWS_PER_SLICE]
            rows: Rows = []
            await self._encode_lines(part, rows, strict=strict)
            await self._put(rows)
            self._rows += len(rows)
            if start:
                await sleep(0)

    async def _encode_lines(self, lines: list[Any], rows: Rows, *, strict: bool) -> None:
        if self._next_id is None:
            self._next_id = await self._counter()
        line = self._line
        try:
            self._encode(self._session, lines, self._next_id, rows.append, strict)
        except ValueError:
            if strict:
                raise
            # int() refused something: the strict way says what.
            rows.clear()
            await self._encode_lines(lines, rows, strict=True)
            return
        except PolarlessError as error:
            where = f"COPY {self._table.name}, line {line + len(rows) + 1}"
            error.context = where + (error.context or "").removeprefix(f"COPY {self._table.name}")
            raise
        self._line += len(lines)

    async def _counter(self) -> Callable[[], int]:
        table = self._table
        if table.primary_key:
            return int
        txn = ddl.transaction_of(self._session)
        while True:
            try:
                return self._row_ids.counter(txn, table.tree).__next__
            except Suspend as suspend:
                await resumed(suspend)

    async def _put(self, rows: Rows) -> None:
        if self._loader is not None:
            await self._loader.add(rows)
            return
        table = self._table
        txn: Transaction = ddl.transaction_of(self._session)
        if self._insert is None:
            self._insert = insert_stored(table, self.parents)
        insert = self._insert
        for key, payload in rows:
            while True:
                try:
                    insert(txn, key, payload)
                    break
                except Suspend as suspend:
                    await resumed(suspend)
                    await check_current(self._session, table, self._version)

    # Lines to fields.

    def _text(self, text: str) -> list[Any]:
        options = self._options
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        lines.pop()
        if self._header and lines:
            self._header = False
            self._check_header(_fields(lines[0], options.delimiter, options.null))
            del lines[0]
        delimiter, null = options.delimiter, options.null
        if "\\" not in text and null == "\\N":
            return [line.split(delimiter) for line in lines]
        result: list[Any] = []
        for line in lines:
            if line == "\\.":
                self._ended = True
                self._rest = b""
                break
            if "\\" not in line and null == "\\N":
                result.append(line.split(delimiter))
            else:
                result.append(_fields(line, delimiter, null))
        return result

    def _csv(self, text: str) -> list[Any]:
        """Records; a quoted field may hold line ends, so an open one waits for more data."""
        options = self._options
        if self._quoted is not None:
            text, self._quoted = self._quoted + text, None
        quote = options.quote
        if text.count(quote) % 2 and options.escape in (None, quote):
            cut = _last_record_end(text, quote)
            self._quoted = text[cut:]
            text = text[:cut]
            if len(self._quoted) > LINE_BYTES_MAX:
                raise CallerMistake("unterminated CSV quoted field", sqlstate="22P04")
        if quote not in text:
            lines = text.replace("\r\n", "\n").split("\n")
            lines.pop()
            split = [line.split(options.delimiter) for line in lines if line != "\\."]
            records = [[None if f == options.null else f for f in fields] for fields in split]
        else:
            records = _csv_records(text, options)
        if self._header and records:
            self._header = False
            self._check_header(records[0])
            del records[0]
        for place in self.nulls[1]:
            # Never NULL: what would be is the text.
            for record in records:
                if place < len(record) and record[place] is None:
                    record[place] = options.null
        for place in self.nulls[0]:
            for record in records:
                if place < len(record) and record[place] == options.null:
                    record[place] = None
        return records

    def _check_header(self, fields: list[str | None]) -> None:
        """HEADER MATCH: raises 22P04 unless the line is the columns' names."""
        if not self._options.match:
            return
        names = [self._table.columns[i].name for i in self._columns]
        if len(fields) != len(names):
            raise CallerMistake(
                f"wrong number of fields in header line: got {len(fields)}, expected {len(names)}",
                sqlstate="22P04",
            )
        for number, (found, name) in enumerate(zip(fields, names), 1):
            if found != name:
                shown = "null value" if found is None else f'"{found}"'
                raise CallerMistake(
                    f"column name mismatch in header line field {number}: got {shown}, expected "
                    f'"{name}"',
                    sqlstate="22P04",
                )


def _fields(line: str, delimiter: str, null: str) -> list[str | None]:
    """The fields of a line with backslashes. A delimiter may be escaped."""
    parts: list[str] = []
    for piece in line.split(delimiter):
        if parts and _ends_escaped(parts[-1]):
            parts[-1] += delimiter + piece
        else:
            parts.append(piece)
    return [
        None if part == null else unescape_copy(part) if "\\" in part else part for part in parts
    ]


def _ends_escaped(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


_COPY_ESCAPE = re.compile(r"\\(?:x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def unescape_copy(text: str) -> str:
    """COPY's own escapes."""

    def replace(found: re.Match[str]) -> str:
        code = found.group()[1:]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        return _LETTERS.get(code, code)

    return _COPY_ESCAPE.sub(replace, text)


def _last_record_end(text: str, quote: str) -> int:
    """Where the last record that is whole ends: the last line end outside of quotes."""
    position, end, inside = 0, 0, False
    while True:
        next_quote = text.find(quote, position)
        if not inside:
            line_end = text.rfind("\n", position, next_quote if next_quote >= 0 else len(text))
            if line_end >= 0:
                end = line_end + 1
        if next_quote < 0:
            return end
        inside = not inside
        position = next_quote + 1


def _csv_records(text: str, options: CopyOptions) -> list[list[str | None]]:
    """Records with quotes. A field that equals the NULL text is NULL unless it was quoted."""
    escape = options.escape
    # Cut once, so that the reader's count of lines is ours: a carriage return ends one for both.
    lines = list(io.StringIO(text, newline=""))
    rows = csv.reader(
        lines,
        delimiter=options.delimiter,
        quotechar=options.quote,
        escapechar=None if escape in (None, options.quote) else escape,
        doublequote=escape in (None, options.quote),
        strict=True,
    )
    # The reader does not tell "" from nothing: mark quoted fields that would be read as NULL.
    result: list[list[str | None]] = []
    quoted_null = options.quote + options.null + options.quote
    try:
        start = 0
        for fields in rows:
            raw = "".join(lines[start : rows.line_num])
            start = rows.line_num
            if options.null in fields and quoted_null in raw:
                result.append(_fields_with_quotes(raw, fields, options))
            else:
                result.append([None if field == options.null else field for field in fields])
    except csv.Error as error:
        raise CallerMistake(f"malformed CSV: {error}", sqlstate="22P04") from None
    return result


def _fields_with_quotes(raw: str, fields: list[str], options: CopyOptions) -> list[str | None]:
    """Which of the fields were quoted, found by walking the record once."""
    quoted: list[bool] = []
    position = 0
    raw = raw.rstrip("\r\n")
    for _ in fields:
        is_quoted = raw[position : position + 1] == options.quote
        quoted.append(is_quoted)
        inside = False
        while position < len(raw):
            char = raw[position]
            position += 1
            if char == options.quote:
                inside = not inside
            elif char == options.delimiter and not inside:
                break
    return [
        None if field == options.null and not was_quoted else field
        for field, was_quoted in zip(fields, quoted)
    ]
