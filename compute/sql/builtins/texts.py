"""Functions of text and bytea."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import unicodedata
from typing import Any, Final

from compute.sql.arraytypes import array_of
from compute.sql.builtins.signatures import Table, loose, plain
from compute.sql.mistakes import SyntaxMistake
from compute.sql.types import BOOL, BYTEA, INT4, INT8, NAME, TEXT, SqlType
from polarless.errors import CallerMistake

LENGTH_MAX: Final = 64 * 1024 * 1024
_array = array_of(TEXT)
assert _array is not None
TEXTS: Final[SqlType] = _array


def checked(text: str) -> str:
    """A result within the bound of one value. Raises 54000."""
    if len(text) > LENGTH_MAX:
        raise CallerMistake("requested length too large", sqlstate="54000")
    return text


def _translate(text: str, source: str, target: str) -> str:
    table: dict[int, str | None] = {}
    for index, char in enumerate(source):
        table.setdefault(ord(char), target[index] if index < len(target) else None)
    return text.translate(table)


def _split_part(text: str, separator: str, place: int) -> str:
    if place == 0:
        raise CallerMistake("field position must not be zero", sqlstate="22023")
    parts = text.split(separator) if separator else [text]
    index = place - 1 if place > 0 else len(parts) + place
    return parts[index] if 0 <= index < len(parts) else ""


def _overlay(text: Any, new: Any, start: int, count: int | None = None) -> Any:
    if start <= 0:
        raise CallerMistake("negative substring length not allowed", sqlstate="22011")
    if count is None:
        count = len(new)
    return text[: start - 1] + new + text[max(start - 1 + count, 0) :]


def _initcap(text: str) -> str:
    parts: list[str] = []
    inside = False
    for char in text:
        known = char.isalnum() and char.isascii()
        parts.append(lower(char) if inside else upper(char))
        inside = known
    return "".join(parts)


# With collation C only the letters of ASCII have another case.
_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def upper(text: str) -> str:
    """upper() with collation C."""
    return text.upper() if text.isascii() else text.translate(_UPPER)


def lower(text: str) -> str:
    """lower() with collation C."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def quote_literal(text: str) -> str:
    """As a string literal."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'" if "\\" not in quoted else "E'" + quoted.replace("\\", "\\\\") + "'"


def _quote_nullable(text: str | None) -> str:
    return "NULL" if text is None else quote_literal(text)


_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_$]*")
# Words that may not be a column's name as they are: PostgreSQL's keywords but the unreserved ones.
_RESERVED_WORDS: Final = """
    all analyse analyze and any array as asc asymmetric authorization between bigint binary
    bit boolean both case cast char character check coalesce collate collation column
    concurrently constraint create cross current_catalog current_date current_role
    current_schema current_time current_timestamp current_user dec decimal default
    deferrable desc distinct do else end except exists extract false fetch float for foreign
    freeze from full grant greatest group grouping having ilike in initially inner inout int
    integer intersect interval into is isnull join lateral leading least left like limit
    localtime localtimestamp national natural nchar none normalize not notnull null nullif
    numeric offset on only or order out outer overlaps overlay placing position precision
    primary real references returning right row select session_user setof similar smallint
    some substring symmetric system_user table tablesample then time timestamp to trailing
    treat trim true union unique user using values varchar variadic verbose when where
    window with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces
    xmlparse xmlpi xmlroot xmlserialize xmltable
"""
RESERVED: Final = frozenset(_RESERVED_WORDS.split())


def quote_ident(text: str) -> str:
    """As an identifier, with quotes where it needs them."""
    if _PLAIN_NAME.fullmatch(text) and text not in RESERVED:
        return text
    return '"' + text.replace('"', '""') + '"'


_FORMAT = re.compile(r"%(?:(\d+)\$)?(-)?(\*(?:\d+\$)?|\d+)?(.?)", re.DOTALL)


def format_text(form: str | None, *values: str | None) -> str | None:
    """format(): ``%s``, ``%I``, ``%L`` with places and widths; the values are texts."""
    if form is None:
        return None
    used = 0

    def value_at(place: int) -> str | None:
        if place >= len(values):
            raise CallerMistake("too few arguments for format()", sqlstate="22023")
        return values[place]

    def replace(found: re.Match[str]) -> str:
        nonlocal used
        place, left, width, kind = found.groups()
        if kind == "%":
            return "%"
        size = 0
        if width and width[0] == "*":
            if len(width) > 1:
                at = int(width[1:-1]) - 1
            else:
                at, used = used, used + 1
            size = int(value_at(at) or 0)
        elif width:
            size = int(width)
        if not kind:
            raise CallerMistake("unterminated format() type specifier", sqlstate="22023")
        if kind not in "sIL":
            raise CallerMistake(f'unrecognized format() type specifier "{kind}"', sqlstate="22023")
        if place is not None and int(place) == 0:
            raise CallerMistake(
                "format specifies argument 0, but arguments are numbered from 1", sqlstate="22023"
            )
        if place is not None:
            used = int(place)
            value = value_at(used - 1)
        else:
            value, used = value_at(used), used + 1
        text = _formatted(kind, value)
        return text.ljust(abs(size)) if left or size < 0 else text.rjust(size)

    return checked(_FORMAT.sub(replace, form))


def _formatted(kind: str, value: str | None) -> str:
    if kind == "s":
        return value or ""
    if kind == "L":
        return _quote_nullable(value)
    if value is None:
        raise CallerMistake(
            "null values cannot be formatted as an SQL identifier", sqlstate="22004"
        )
    return quote_ident(value)


def concat_ws(separator: str | None, *values: str | None) -> str | None:
    """concat_ws()."""
    if separator is None:
        return None
    return separator.join(value for value in values if value is not None)


def _to_hex(value: int, bits: int) -> str:
    return format(value & ((1 << bits) - 1), "x")


def _to_hex4(value: int) -> str:
    return _to_hex(value, 32)


def _to_hex8(value: int) -> str:
    return _to_hex(value, 64)


def _encode(data: bytes, how: str) -> str:
    kind = how.lower()
    if kind == "hex":
        return data.hex()
    if kind == "base64":
        text = base64.b64encode(data).decode()
        return "\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    if kind == "escape":
        return "".join(
            "\\\\" if byte == 0x5C else chr(byte) if 0 < byte < 0x80 else f"\\{byte:03o}"
            for byte in data
        )
    raise CallerMistake(f'unrecognized encoding: "{how}"', sqlstate="22023")


def _decode(text: str, how: str) -> bytes:
    from compute.sql.types import parse_bytea

    kind = how.lower()
    if kind == "hex":
        squeezed = "".join(text.split())
        for char in squeezed:
            if char not in "0123456789abcdefABCDEF":
                raise CallerMistake(f'invalid hexadecimal digit: "{char}"', sqlstate="22023")
        if len(squeezed) % 2:
            raise CallerMistake("invalid hexadecimal data: odd number of digits", sqlstate="22023")
        return bytes.fromhex(squeezed)
    if kind == "base64":
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except binascii.Error:
            raise CallerMistake(
                "invalid base64 end sequence",
                sqlstate="22023",
                hint="Input data is missing padding, is truncated, or is otherwise corrupted.",
            ) from None
    if kind == "escape":
        return parse_bytea(text) if not text.startswith("\\x") else text.encode()
    raise CallerMistake(f'unrecognized encoding: "{how}"', sqlstate="22023")


def _utf8_only(name: str) -> None:
    if name.lower().replace("-", "").replace("_", "") not in ("utf8", "unicode", "sqlascii"):
        raise CallerMistake(f'invalid encoding name "{name}"', sqlstate="22023")


def _convert_to(text: str, name: str) -> bytes:
    _utf8_only(name)
    return text.encode()


def _convert_from(data: bytes, name: str) -> str:
    from compute.sql.types import decode_utf8

    _utf8_only(name)
    return decode_utf8(data)


def _index(data: bytes, place: int, size: int) -> None:
    if not 0 <= place < size:
        raise CallerMistake(f"index {place} out of valid range, 0..{size - 1}", sqlstate="2202E")


def _get_byte(data: bytes, place: int) -> int:
    _index(data, place, len(data))
    return data[place]


def _set_byte(data: bytes, place: int, value: int) -> bytes:
    _index(data, place, len(data))
    return data[:place] + bytes((value & 255,)) + data[place + 1 :]


def _get_bit(data: bytes, place: int) -> int:
    _index(data, place, len(data) * 8)
    return data[place // 8] >> (place % 8) & 1


def _set_bit(data: bytes, place: int, value: int) -> bytes:
    _index(data, place, len(data) * 8)
    if value not in (0, 1):
        raise CallerMistake("new bit must be 0 or 1", sqlstate="22023")
    byte = data[place // 8] & ~(1 << place % 8) | value << place % 8
    return _set_byte(data, place // 8, byte)


def _bit_count(data: bytes) -> int:
    return int.from_bytes(data, "big").bit_count()


def _byte_substring(data: bytes, start: int, length: int | None = None) -> bytes:
    if length is None:
        return data[max(start - 1, 0) :]
    if length < 0:
        raise CallerMistake("negative substring length not allowed", sqlstate="22011")
    return data[max(start - 1, 0) : max(start - 1 + length, 0)]


def _byte_position(data: bytes, piece: bytes) -> int:
    return data.find(piece) + 1


def _byte_trim(data: bytes, chars: bytes) -> bytes:
    return data.strip(chars) if chars else data


def _byte_ltrim(data: bytes, chars: bytes) -> bytes:
    return data.lstrip(chars) if chars else data


def _byte_rtrim(data: bytes, chars: bytes) -> bytes:
    return data.rstrip(chars) if chars else data


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _md5_text(text: str) -> str:
    return _md5(text.encode())


def _sha224(data: bytes) -> bytes:
    return hashlib.sha224(data).digest()


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _sha384(data: bytes) -> bytes:
    return hashlib.sha384(data).digest()


def _sha512(data: bytes) -> bytes:
    return hashlib.sha512(data).digest()


_UNICODE = re.compile(
    r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|\+([0-9A-Fa-f]{6})|([0-9A-Fa-f]{4})|(\\))|\\"
)


def unistr(text: str) -> str:
    """``\\0061`` and its longer forms. Raises 42601."""

    def replace(found: re.Match[str]) -> str:
        if found.group(5):
            return "\\"
        digits = next((group for group in found.groups()[:4] if group), None)
        if digits is None:
            raise SyntaxMistake("invalid Unicode escape")
        code = int(digits, 16)
        if not 0 < code <= 0x10FFFF:
            raise SyntaxMistake("invalid Unicode escape value")
        return chr(code)

    # Two escapes may stand for one character as in UTF-16.
    made = _UNICODE.sub(replace, text)
    return made.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _normalize(text: str, form: str = "NFC") -> str:
    if form.upper() not in ("NFC", "NFD", "NFKC", "NFKD"):
        raise CallerMistake(f"invalid normalization form: {form}", sqlstate="22023")
    return unicodedata.normalize(form.upper(), text)  # type: ignore[arg-type]


def _is_normalized(text: str, form: str = "NFC") -> bool:
    return _normalize(text, form) == text


def _parse_ident(text: str, strict: bool = True) -> list[str]:
    parts: list[str] = []
    rest = text.strip()
    pattern = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([A-Za-z_\x80-\U0010ffff][\w$]*))\s*')
    position = 0
    while True:
        found = pattern.match(rest, position)
        if found is None:
            raise CallerMistake(f'string is not a valid identifier: "{text}"', sqlstate="22023")
        quoted, bare = found.groups()
        parts.append(quoted.replace('""', '"') if quoted is not None else bare.lower())
        position = found.end()
        if position == len(rest):
            return parts
        if rest[position] != ".":
            if not strict:
                return parts
            raise CallerMistake(f'string is not a valid identifier: "{text}"', sqlstate="22023")
        position += 1


def text_to_array(
    text: str | None, separator: str | None, null: str | None = None
) -> list[str | None] | None:
    """string_to_array()."""
    if text is None:
        return None
    if not text:
        return []
    if separator is None:
        parts: list[str | None] = list(text)
    else:
        parts = list(text.split(separator)) if separator else [text]
    return [None if part == null and null is not None else part for part in parts]


def _like_escape(pattern: str, escape: str) -> str:
    return pattern.replace(escape, "\\") if escape else pattern.replace("\\", "\\\\")


TABLE: Final[Table] = {
    "bit_length": (
        plain((TEXT,), INT4, "len({0}.encode()) * 8"),
        plain((BYTEA,), INT4, "len({0}) * 8"),
    ),
    "lower": (plain((TEXT,), TEXT, lower),),
    "upper": (plain((TEXT,), TEXT, upper),),
    "initcap": (plain((TEXT,), TEXT, _initcap),),
    "translate": (plain((TEXT, TEXT, TEXT), TEXT, _translate),),
    "split_part": (plain((TEXT, TEXT, INT4), TEXT, _split_part),),
    "overlay": (
        plain((TEXT, TEXT, INT4), TEXT, _overlay),
        plain((TEXT, TEXT, INT4, INT4), TEXT, _overlay),
        plain((BYTEA, BYTEA, INT4), BYTEA, _overlay),
        plain((BYTEA, BYTEA, INT4, INT4), BYTEA, _overlay),
    ),
    "quote_ident": (plain((TEXT,), TEXT, quote_ident),),
    "quote_literal": (plain((TEXT,), TEXT, quote_literal),),
    "quote_nullable": (loose((TEXT,), TEXT, _quote_nullable),),
    "to_hex": (plain((INT4,), TEXT, _to_hex4), plain((INT8,), TEXT, _to_hex8)),
    "encode": (plain((BYTEA, TEXT), TEXT, _encode),),
    "decode": (plain((TEXT, TEXT), BYTEA, _decode),),
    "convert_to": (plain((TEXT, NAME), BYTEA, _convert_to),),
    "convert_from": (plain((BYTEA, NAME), TEXT, _convert_from),),
    "get_byte": (plain((BYTEA, INT4), INT4, _get_byte),),
    "set_byte": (plain((BYTEA, INT4, INT4), BYTEA, _set_byte),),
    "get_bit": (plain((BYTEA, INT8), INT4, _get_bit),),
    "set_bit": (plain((BYTEA, INT8, INT4), BYTEA, _set_bit),),
    "bit_count": (plain((BYTEA,), INT8, _bit_count),),
    "md5": (
        plain((TEXT,), TEXT, _md5_text),
        plain((BYTEA,), TEXT, _md5),
    ),
    "sha224": (plain((BYTEA,), BYTEA, _sha224),),
    "sha256": (plain((BYTEA,), BYTEA, _sha256),),
    "sha384": (plain((BYTEA,), BYTEA, _sha384),),
    "sha512": (plain((BYTEA,), BYTEA, _sha512),),
    "unistr": (plain((TEXT,), TEXT, unistr),),
    "normalize": (
        plain((TEXT,), TEXT, _normalize),
        plain((TEXT, TEXT), TEXT, _normalize),
    ),
    "is_normalized": (
        plain((TEXT,), BOOL, _is_normalized),
        plain((TEXT, TEXT), BOOL, _is_normalized),
    ),
    "parse_ident": (
        plain((TEXT,), TEXTS, _parse_ident),
        plain((TEXT, BOOL), TEXTS, _parse_ident),
    ),
    "string_to_array": (
        loose((TEXT, TEXT), TEXTS, text_to_array),
        loose((TEXT, TEXT, TEXT), TEXTS, text_to_array),
    ),
    "like_escape": (plain((TEXT, TEXT), TEXT, _like_escape),),
}
# Added to the signatures of text that are elsewhere.
BYTES: Final[Table] = {
    "substring": (
        plain((BYTEA, INT4), BYTEA, _byte_substring),
        plain((BYTEA, INT4, INT4), BYTEA, _byte_substring),
    ),
    "strpos": (plain((BYTEA, BYTEA), INT4, _byte_position),),
    "btrim": (plain((BYTEA, BYTEA), BYTEA, _byte_trim),),
    "ltrim": (plain((BYTEA, BYTEA), BYTEA, _byte_ltrim),),
    "rtrim": (plain((BYTEA, BYTEA), BYTEA, _byte_rtrim),),
}
__all__ = ["BYTES", "TABLE", "TEXTS", "concat_ws", "format_text", "quote_ident", "quote_literal"]
