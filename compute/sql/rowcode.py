"""Generated code around the expressions: decoding parameters, encoding rows, compiling functions.

A DataRow is ``D``, its length, the count of columns, and for each column its length (-1 for NULL)
and bytes. The lengths of short values come from a table.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack

from compute.sql.catalog import ENCODERS, pack_row
from compute.sql.expressions import Emitter, Node, ParamSlot
from compute.sql.mistakes import bad_binary, out_of_range, too_long, value_out_of_range
from compute.sql.plan import BINARY_FORMAT, LITERAL_FORMAT, Column
from compute.sql.syntax import too_deep
from compute.sql.types import (
    BINARY_INPUT,
    BINARY_OUTPUT,
    BOOL,
    BPCHAR,
    INT_BOUNDS,
    PARSERS,
    STRINGS,
    TEXT_OUTPUT,
    SqlType,
    decode_utf8,
)
from polarless.errors import PolarlessError
from polarless.kernel import keycode

pack_u32: Final = struct.Struct("!I").pack
_pack_head: Final = struct.Struct("!cIHi").pack
NULL_BYTES: Final = b"\xff\xff\xff\xff"
# Length prefixes of short values, and whole heads of DataRows with one short column.
LENGTHS: Final = tuple(pack_u32(size) for size in range(256))
ONE_COLUMN: Final = tuple(_pack_head(b"D", size + 10, 1, size) for size in range(256))


def length(size: int) -> bytes:
    """A column's length prefix."""
    return LENGTHS[size] if size < 256 else pack_u32(size)


def base_names() -> dict[str, Any]:
    """What generated functions find outside themselves."""
    return {
        "unpack": msgpack.unpackb,
        "pack_row": pack_row,
        "pack_u32": pack_u32,
        "length": length,
        "LENGTHS": LENGTHS,
        "ONE_COLUMN": ONE_COLUMN,
        "NULL_BYTES": NULL_BYTES,
        "prefix_end": keycode.prefix_end,
        "encode_null": b"\xf0",
        **ENCODERS,
    }


# --------------------------------------------------------------------------------------- parameters

_INT_FORMS: Final = {2: struct.Struct("!h"), 4: struct.Struct("!i"), 8: struct.Struct("!q")}


def decode_int_text(raw: bytes, kind: SqlType) -> int:
    """An integer parameter in text form; the strict way, for when the quick one failed."""
    return int(PARSERS[kind](decode_utf8(raw)))


def decoder(kind: SqlType, form: int) -> Callable[[Any], Any]:
    """From a parameter that is not NULL to its value."""
    if form == BINARY_FORMAT:
        return BINARY_INPUT[kind]
    parser = PARSERS[kind]
    if form == LITERAL_FORMAT:
        return parser
    return lambda raw: parser(decode_utf8(raw))


def emit_param(out: Emitter, slot: ParamSlot, source: str, form: int) -> None:
    """Decode the raw parameter ``source`` into ``p<index>``."""
    name, kind = f"p{slot.index}", slot.type
    if kind.family == "int" and kind in INT_BOUNDS:
        low = INT_BOUNDS[kind][0]
        slow = f"decode{kind.oid}_{form}_"
        out.names[slow] = decoder(kind, form)
        if form == BINARY_FORMAT:
            size = kind.size
            out.line(f"{name} = {source}")
            with out.block(f"if {name} is not None"):
                # `slow` raises for the wrong length, with the right words.
                out.line(
                    f'{name} = from_bytes({name}, "big", signed={low < 0}) '
                    f"if len({name}) == {size} else {slow}({name})"
                )
            out.names["from_bytes"] = int.from_bytes
            return
        out.line(f"{name} = {source}")
        with out.block(f"if {name} is not None"):
            # Few characters that are all digits: the way nearly every parameter goes. The bound is
            # such that the value fits; all else is looked at closely.
            digits = {2: 4, 4: 9, 8: 18}[kind.size]
            minus = "'-'" if form == LITERAL_FORMAT else "b'-'"
            plain = f"{name}.isdigit() or ({name}[:1] == {minus} and {name}[1:].isdigit())"
            if form == LITERAL_FORMAT:
                plain = f"{name}.isascii() and ({plain})"
            out.line(
                f"{name} = int({name}) if len({name}) <= {digits} and ({plain}) else {slow}({name})"
            )
        return
    out.line(f"{name} = {source}")
    if kind in STRINGS and kind is not BPCHAR and form != LITERAL_FORMAT:
        name_of = f"decode{kind.oid}_{form}_"
        out.names[name_of] = decoder(kind, form)
        with out.block(f"if {name} is not None"):
            out.line(f"{name} = {name_of}({name})")
        return
    name_of = f"decode{kind.oid}_{form}_"
    out.names[name_of] = decoder(kind, form)
    out.line(f"if {name} is not None: {name} = {name_of}({name})")


def emit_params(out: Emitter, slots: list[ParamSlot], formats: tuple[int, ...]) -> None:
    """Decode all raw ``params`` at the function's beginning."""
    for slot, form in zip(slots, formats):
        emit_param(out, slot, f"params[{slot.index}]", form)
    out.before += out.lines
    out.lines = []


def start_step(slots: list[ParamSlot]) -> Emitter:
    """An emitter for a function of ``P``, the decoded parameters."""
    out = Emitter(base_names())
    if slots:
        out.before.append(f"    ({', '.join(f'p{slot.index}' for slot in slots)},) = P")
    return out


def param_decoder(slots: list[ParamSlot], formats: tuple[int, ...]) -> Callable[[Any], Any]:
    """A generated function from raw parameters to the tuple of values."""
    if not slots:
        return lambda params: ()
    names = base_names()
    out = Emitter(names)
    for slot, form in zip(slots, formats):
        emit_param(out, slot, f"params[{slot.index}]", form)
    values = ", ".join(f"p{slot.index}" for slot in slots)
    out.line(f"return ({values},)")
    return compile_function("decode", "params", out)


# ------------------------------------------------------------------------------------------- rows


def column_source(value: str, kind: SqlType, typmod: int, form: int, out: Emitter) -> str:
    """Source for the bytes of a value that is not NULL."""
    if form == BINARY_FORMAT and BINARY_OUTPUT[kind] is not TEXT_OUTPUT[kind]:
        name = f"binary{kind.oid}_"
        out.names[name] = BINARY_OUTPUT[kind]
        return f"{name}({value})"
    if kind.family == "int":
        return f'b"%d" % {value}'
    if kind is BPCHAR and typmod >= 4:
        # Full ones are usual, and a look at the length is a third of a call.
        padded = f"({value} if len({value}) == {typmod - 4} else {value}.ljust({typmod - 4}))"
        return f"{padded}.encode()"
    if kind.family == "text":
        return f"{value}.encode()"
    if kind is BOOL:
        return f'(b"t" if {value} else b"f")'
    name = f"text{kind.oid}_"
    out.names[name] = TEXT_OUTPUT[kind]
    return f"{name}({value})"


def emit_row(out: Emitter, values: list[str], columns: list[Node], formats: tuple[int, ...]) -> str:
    """Write what makes a DataRow of the values; returns its source."""
    if len(columns) == 1:
        return _emit_one(out, values[0], columns[0], formats[0])
    parts: list[str] = []
    for value, column, form in zip(values, columns, formats):
        part = out.temp()
        source = column_source(value, column.type, column.pad, form, out)
        if column.nullable:
            with out.block(f"if {value} is None"):
                out.line(f"{part} = NULL_BYTES")
            with out.block("else"):
                out.line(f"{part} = {source}")
                out.line(f"{part} = length(len({part})) + {part}")
        elif column.type.family == "int":
            out.line(f"{part} = {source}")
            out.line(f"{part} = LENGTHS[len({part})] + {part}")
        else:
            out.line(f"{part} = {source}")
            out.line(f"{part} = length(len({part})) + {part}")
        parts.append(part)
    count = len(columns).to_bytes(2, "big")
    body = out.temp()
    if len(parts) <= 8:
        out.line(f"{body} = {' + '.join(parts) if parts else repr(b'')}")
    else:
        out.line(f'{body} = b"".join(({", ".join(parts)}))')
    return f'b"D" + pack_u32(len({body}) + 6) + {count!r} + {body}'


def _emit_one(out: Emitter, value: str, column: Node, form: int) -> str:
    row = out.temp()
    null = b"D" + pack_u32(10) + b"\0\1" + NULL_BYTES
    source = column_source(value, column.type, column.pad, form, out)
    short = column.type.family == "int"

    def emit_value() -> None:
        out.line(f"{row} = {source}")
        if short:
            out.line(f"{row} = ONE_COLUMN[len({row})] + {row}")
        else:
            out.names["one_column"] = one_column
            head = f"ONE_COLUMN[n] if (n := len({row})) < 256 else one_column(n)"
            out.line(f"{row} = ({head}) + {row}")

    if column.nullable:
        with out.block(f"if {value} is None"):
            out.line(f"{row} = {null!r}")
        with out.block("else"):
            emit_value()
    else:
        emit_value()
    return row


def one_column(size: int) -> bytes:
    """The head of a DataRow with one column of so many bytes."""
    return ONE_COLUMN[size] if size < 256 else _pack_head(b"D", size + 10, 1, size)


def describe(name: str, node: Node) -> Column:
    """A result column for RowDescription."""
    return Column(name, node.type.oid, node.type.size, node.typmod)


# ---------------------------------------------------------------------------------------- compiling

_serial = itertools.count(1)


def compile_function(name: str, arguments: str, out: Emitter) -> Callable[..., Any]:
    """Compile the emitter's lines as the body of a function."""
    body = [*out.before, *out.lines]
    source = f"def {name}({arguments}):\n" + "\n".join(body or ["    pass"]) + "\n"
    try:
        code = compile(source, f"<sql {next(_serial)}>", "exec")
    except (SyntaxError, RecursionError, MemoryError):
        raise too_deep() from None
    exec(code, out.names)
    function: Callable[..., Any] = out.names[name]
    return function


_errors: tuple[Callable[..., PolarlessError], ...] = (
    bad_binary,
    out_of_range,
    too_long,
    value_out_of_range,
)
