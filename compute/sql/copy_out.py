"""COPY table or (query) TO STDOUT: the plan, and DataRows turned into CopyData.

The session runs the query behind it (`CopyOut.query`) with text or binary results. One CopyData is
one row, as clients expect of PostgreSQL. A row in binary is the very body of a DataRow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from compute.sql.catalog import Catalog
from compute.sql.catalogs.objects import quote
from compute.sql.copy import generated_in_copy
from compute.sql.copy_options import CopyOptions, copy_options, forced
from compute.sql.filling import generated_columns
from compute.sql.mistakes import not_supported
from compute.sql.plan import Plan
from compute.sql.syntax import OP, Token, token_name
from compute.sql.utility import Reader
from polarless.errors import CallerMistake

BINARY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
BINARY_TRAILER: Final = b"\xff\xff"
Encoder = Callable[[bytes], bytes]


class CopyOut(NamedTuple):
    """The query whose rows go out, and how."""

    query: str
    options: CopyOptions


def plan_copy_out(text: str, tokens: list[Token], catalog_of: Callable[[], Catalog]) -> Plan | None:
    """The plan, or None if it is a COPY FROM."""
    reader = Reader(tokens)
    reader.expect("copy")
    old_binary = reader.accept("binary")
    if reader.accept("("):
        start = reader.position
        end = _closing(reader)
        query = text[tokens[start].start : tokens[end - 1].end] if end > start else ""
        if tokens[start].value not in _QUERIES:
            raise not_supported(f"COPY ({tokens[start].value.upper()} ...)")
        reader.expect("to")
    else:
        start = reader.position
        parts = [reader.name()]
        if reader.accept("."):
            parts.append(reader.name())
        name_end, columns = reader.position, "*"
        wanted: list[str] = []
        if reader.accept("("):
            first = reader.position
            end = _closing(reader)
            columns = text[tokens[first].start : tokens[end - 1].end]
            wanted = [token_name(t) for t in tokens[first:end] if t.value != ","]
        if not reader.accept("to"):
            return None
        columns = _table_columns(catalog_of(), parts, wanted) or columns
        name = text[tokens[start].start : tokens[name_end - 1].end]
        query = f"select {columns} from {name}"
    if reader.peek is not None and not reader.accept("stdout"):
        raise not_supported("COPY TO a file or program", hint="Use psql's \\copy, or TO STDOUT.")
    options = copy_options(reader, out=True)
    reader.end()
    options.binary = options.binary or old_binary
    return Plan("copy_out", argument=CopyOut(query, options), verb="COPY TO")


def _table_columns(catalog: Catalog, parts: list[str], wanted: list[str]) -> str:
    """The columns of a table some of which are generated; empty: all, or those that are wanted."""
    schema = parts[0] if len(parts) > 1 else None
    table = catalog.find(parts[-1], schema)
    if table is None:
        if catalog.view(parts[-1], schema) is not None:
            raise CallerMistake(
                f'cannot copy from view "{parts[-1]}"',
                sqlstate="42809",
                hint="Try the COPY (SELECT ...) TO variant.",
            )
        return ""
    generated = {table.columns[i].name for i in generated_columns(table)}
    for name in wanted:
        if name in generated:
            raise generated_in_copy(name)
    if not generated or wanted:
        return ""
    return ", ".join(quote(c.name) for c in table.columns if c.name not in generated)


_QUERIES: Final = frozenset({"select", "values", "table", "with", "insert", "update", "delete"})


def _closing(reader: Reader) -> int:
    """Step behind the closing parenthesis; its index."""
    depth = 1
    while depth:
        token = reader.next()
        if token.kind == OP and token.value == "(":
            depth += 1
        elif token.kind == OP and token.value == ")":
            depth -= 1
    return reader.position - 1


# ------------------------------------------------------------------------------------------- rows


def encoder(options: CopyOptions, names: Sequence[str] = ()) -> Encoder:
    """A function from whole DataRows to CopyData messages. ``names``: the columns'."""
    join = _joiner(options, names)

    def encode(rows: bytes) -> bytes:
        parts: list[bytes] = []
        position, end = 0, len(rows)
        while position < end:
            count = int.from_bytes(rows[position + 5 : position + 7], "big")
            position += 7
            values: list[bytes | None] = []
            for _ in range(count):
                size = int.from_bytes(rows[position : position + 4], "big")
                position += 4
                if size == 0xFFFFFFFF:
                    values.append(None)
                else:
                    values.append(rows[position : position + size])
                    position += size
            parts.append(copy_data(join(values)))
        return b"".join(parts)

    return encode


def _joiner(options: CopyOptions, names: Sequence[str]) -> Callable[[list[bytes | None]], bytes]:
    if not options.csv:
        join = text_line(options)
    else:
        join = csv_line(options, forced(options.force_quote, list(names), "force_quote"))
    if options.encoding == "utf-8":
        return join
    return lambda values: join(values).decode().encode(options.encoding, "replace")


def header(options: CopyOptions, names: Sequence[str]) -> bytes:
    """The line of names before the rows, as a CopyData; nothing for most."""
    if options.binary or not options.header:
        return b""
    join = csv_line(options) if options.csv else text_line(options)
    return copy_data(join([name.encode() for name in names]))


def copy_data(body: bytes) -> bytes:
    """One CopyData message."""
    return b"d" + (len(body) + 4).to_bytes(4, "big") + body


class BinaryEncoder:
    """Rows as they are. The header is in the first CopyData, as clients expect of PostgreSQL."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = BINARY_HEADER

    def __call__(self, rows: bytes) -> bytes:
        parts: list[bytes] = []
        position, end = 0, len(rows)
        while position < end:
            size = int.from_bytes(rows[position + 1 : position + 5], "big")
            if self._before:
                parts.append(copy_data(self._before + rows[position + 5 : position + 1 + size]))
                self._before = b""
            else:
                parts.append(b"d" + rows[position + 1 : position + 1 + size])
            position += 1 + size
        return b"".join(parts)

    def trailer(self) -> bytes:
        """What comes after the rows."""
        before, self._before = self._before, b""
        return copy_data(before + BINARY_TRAILER)


_ESCAPED: Final = {
    b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t",
    b"\v": b"\\v",
}  # fmt: skip


def text_line(options: CopyOptions) -> Callable[[list[bytes | None]], bytes]:
    """Joins values into a line of the text format."""
    delimiter, null = options.delimiter.encode(), options.null.encode()
    escaped = {**_ESCAPED, delimiter: _ESCAPED.get(delimiter, b"\\" + delimiter)}
    special = re.compile(b"[" + b"".join(map(re.escape, escaped)) + b"]")

    def escape(found: re.Match[bytes]) -> bytes:
        return escaped[found.group()]

    def join(values: list[bytes | None]) -> bytes:
        return (
            delimiter.join(
                null
                if value is None
                else special.sub(escape, value)
                if special.search(value)
                else value
                for value in values
            )
            + b"\n"
        )

    return join


def csv_line(
    options: CopyOptions, always: Collection[int] = ()
) -> Callable[[list[bytes | None]], bytes]:
    """Joins values into a line of CSV: what could be read as something else is quoted, and the
    columns of FORCE_QUOTE ``always`` are.
    """
    delimiter, null = options.delimiter.encode(), options.null.encode()
    quote = options.quote.encode()
    mark = (options.escape or options.quote).encode()
    special = re.compile(b"[" + re.escape(delimiter + quote) + b"\r\n]")

    def field(value: bytes | None, alone: bool, force: bool = False) -> bytes:
        if value is None:
            return null
        if force or value == null or (alone and value == b"\\.") or special.search(value):
            if mark != quote:
                value = value.replace(mark, mark + mark)
            return quote + value.replace(quote, mark + quote) + quote
        return value

    def join(values: list[bytes | None]) -> bytes:
        alone = len(values) == 1
        if always:
            parts = [field(value, alone, i in always) for i, value in enumerate(values)]
            return delimiter.join(parts) + b"\n"
        return delimiter.join(field(value, alone) for value in values) + b"\n"

    return join
