"""Keys as bytes that sort like the values they stand for.

``encode((a, b)) < encode((c, d))`` exactly when ``(a, b) < (c, d)`` in the order of an index:
column by column, NULL (None) after everything, NaN after every other number, text by code point,
and a tuple before every longer tuple that it begins. `decode` is the inverse, up to what compares
equal: -0.0 comes back as 0.0, Decimal("1.10") as Decimal("1.1").

    column   tag   then
    False    10
    True     11
    int      20+n  n bytes, big-endian, for n = 1..8; 20 alone is zero; 20-n: a negative one, to
                   which 256**n - 1 was added; 29 (17 if negative): one byte n (255-n), n bytes
    float    40    8 bytes, big-endian IEEE 754; all bits flipped if negative, else the sign bit
    Decimal  48    -Infinity       49   negative: as 4b, all bits flipped
             4a    zero
             4b    exponent + 2**31 in 4 bytes, then pairs of digits plus one, then 00
             4c    Infinity        4d   NaN
    str      60    UTF-8, 00 written as 00 ff, then 00
    bytes    70    the same
    None     f0

One column of a key has one type: values of different types sort by their tags. Times and dates are
ints here (microseconds, days); whoever knows the column's type converts. No encoded column begins
another one, so the concatenation sorts as the tuple does, and ``prefix_end(encode(prefix))`` bounds
all keys that begin with ``prefix``.

A tree whose key is one integer column uses the int itself and none of this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from polarless.errors import CallerMistake, CorruptData

_FALSE: Final = 0x10
_TRUE: Final = 0x11
_INT_LONG_NEGATIVE: Final = 0x17
_INT: Final = 0x20
_INT_LONG: Final = 0x29
_FLOAT: Final = 0x40
_DECIMAL_NEGATIVE_INFINITY: Final = 0x48
_DECIMAL_NEGATIVE: Final = 0x49
_DECIMAL_ZERO: Final = 0x4A
_DECIMAL: Final = 0x4B
_DECIMAL_INFINITY: Final = 0x4C
_DECIMAL_NAN: Final = 0x4D
_STR: Final = 0x60
_BYTES: Final = 0x70
_NULL: Final = 0xF0

_NULL_BYTES: Final = bytes([_NULL])
_DOUBLE = struct.Struct(">d")
_WORD = struct.Struct(">Q")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
# Above every tag, below the ff that escapes a zero byte.
_PREFIX_END: Final = b"\xfe"
_INT_BYTES_MAX: Final = 255
_EXPONENT_BIAS: Final = 1 << 31

# Keys are mostly small: ids, counts, enumerations.
_SMALL: Final = [bytes([_INT])] + [
    bytes([_INT + (v.bit_length() + 7) // 8]) + v.to_bytes((v.bit_length() + 7) // 8, "big")
    for v in range(1, 1024)
]


def encode_int(value: int) -> bytes:
    """One int of any size up to 255 bytes. Raises `CallerMistake` beyond that."""
    if 0 <= value < 1024:
        return _SMALL[value]
    size = (value.bit_length() + 7) >> 3
    if size <= 8:
        if value > 0:
            return bytes((_INT + size,)) + value.to_bytes(size, "big")
        return bytes((_INT - size,)) + (value + (1 << (size << 3)) - 1).to_bytes(size, "big")
    if size > _INT_BYTES_MAX:
        raise CallerMistake(f"an integer of {size} bytes is too long for a key", sqlstate="22003")
    if value > 0:
        return bytes((_INT_LONG, size)) + value.to_bytes(size, "big")
    body = (value + (1 << (size << 3)) - 1).to_bytes(size, "big")
    return bytes((_INT_LONG_NEGATIVE, 255 - size)) + body


def encode_str(value: str) -> bytes:
    """One text. Raises `CallerMistake` for lone surrogates, which UTF-8 cannot hold."""
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise CallerMistake(f"text is not valid Unicode: {error}", sqlstate="22021") from None
    if 0 in data:
        data = data.replace(b"\0", b"\0\xff")
    return b"\x60%b\0" % data


def encode_bytes(value: bytes) -> bytes:
    """One byte string."""
    return b"\x70%b\0" % bytes(value).replace(b"\0", b"\0\xff")


def encode_bool(value: bool) -> bytes:
    """One truth value."""
    return b"\x11" if value else b"\x10"


def encode_float(value: float) -> bytes:
    """One float. All NaNs are one value and sort last, as in PostgreSQL."""
    if value != value:
        return b"\x40\xff\xf8\0\0\0\0\0\0"
    # -0.0 + 0.0 is 0.0: the two compare equal and so must be one key.
    (bits,) = _WORD.unpack(_DOUBLE.pack(value + 0.0))
    return b"\x40" + _WORD.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def encode_decimal(value: Decimal) -> bytes:
    """One decimal number. Trailing zeros make no difference."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        if exponent != "F":
            return bytes((_DECIMAL_NAN,))
        return bytes((_DECIMAL_NEGATIVE_INFINITY if sign else _DECIMAL_INFINITY,))
    # Canonical: value = 0.d1 d2 d3... * 10 ** point, with neither leading nor trailing zeros.
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return bytes((_DECIMAL_ZERO,))
    point = len(text) + exponent + _EXPONENT_BIAS
    if not 0 <= point < 1 << 32:
        raise CallerMistake(f"exponent of {value} is too large for a key", sqlstate="22003")
    text = text.rstrip("0")
    if len(text) & 1:
        text += "0"
    pairs = bytes(int(text[i : i + 2]) + 1 for i in range(0, len(text), 2))
    body = point.to_bytes(4, "big") + pairs + b"\0"
    if sign:
        return bytes((_DECIMAL_NEGATIVE,)) + _flip(body)
    return bytes((_DECIMAL,)) + body


def _encode_null(value: None) -> bytes:
    return _NULL_BYTES


ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    int: encode_int,
    str: encode_str,
    bytes: encode_bytes,
    bool: encode_bool,
    float: encode_float,
    Decimal: encode_decimal,
    type(None): _encode_null,
    bytearray: encode_bytes,
    memoryview: encode_bytes,
}


def encode_value(value: Any) -> bytes:
    """One column. Raises `CallerMistake` for a type that has no order here."""
    encoder = ENCODERS.get(type(value))
    if encoder is None:
        # Subclasses (IntEnum, numpy's str_) are what they inherit from.
        for base in (bool, int, float, str, bytes, Decimal):
            if isinstance(value, base):
                return ENCODERS[base](value)
        raise CallerMistake(
            f"a value of type {type(value).__name__} cannot be part of a key", sqlstate="42804"
        )
    return encoder(value)


def encode(values: Sequence[Any]) -> bytes:
    """The key's bytes: a tuple of None, bool, int, float, str, bytes or Decimal."""
    if len(values) == 1:
        return encode_value(values[0])
    return b"".join([encode_value(value) for value in values])


def prefix_end(prefix: bytes) -> bytes:
    """The least bytes above every key that begins with the columns encoded in ``prefix``."""
    return prefix + _PREFIX_END


def decode(data: bytes) -> tuple[Any, ...]:
    """The tuple that `encode` was given. Raises `CorruptData` for bytes it cannot have made."""
    values: list[Any] = []
    offset, size = 0, len(data)
    try:
        while offset < size:
            value, offset = _decode_one(data, offset)
            values.append(value)
    except (ValueError, IndexError, struct.error) as error:
        raise CorruptData(f"key {data[:64].hex()}: {error} at byte {offset}") from None
    if offset != size:
        raise CorruptData(f"key {data[:64].hex()}: ends inside a column")
    return tuple(values)


def _decode_one(data: bytes, offset: int) -> tuple[Any, int]:
    """The column at ``offset`` and the offset behind it. An end beyond ``data`` means it is cut."""
    tag = data[offset]
    offset += 1
    if _INT - 8 <= tag <= _INT + 8:
        if tag >= _INT:
            end = offset + tag - _INT
            return int.from_bytes(data[offset:end], "big"), end
        size = _INT - tag
        end = offset + size
        return int.from_bytes(data[offset:end], "big") - (1 << (size << 3)) + 1, end
    if tag in (_STR, _BYTES):
        end = data.index(0, offset)
        # A zero byte of the content is followed by ff, which no tag is.
        while data[end + 1 : end + 2] == b"\xff":
            end = data.index(0, end + 2)
        body = data[offset:end].replace(b"\0\xff", b"\0")
        return (body.decode() if tag == _STR else body), end + 1
    if tag == _NULL:
        return None, offset
    if tag in (_FALSE, _TRUE):
        return tag == _TRUE, offset
    if tag == _FLOAT:
        (bits,) = _WORD.unpack_from(data, offset)
        return _DOUBLE.unpack(_WORD.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0], offset + 8
    if tag == _INT_LONG:
        end = offset + 1 + data[offset]
        return int.from_bytes(data[offset + 1 : end], "big"), end
    if tag == _INT_LONG_NEGATIVE:
        size = 255 - data[offset]
        end = offset + 1 + size
        return int.from_bytes(data[offset + 1 : end], "big") - (1 << (size << 3)) + 1, end
    return _decode_decimal(data, tag, offset)


def _decode_decimal(data: bytes, tag: int, offset: int) -> tuple[Decimal, int]:
    if tag == _DECIMAL_ZERO:
        return Decimal(0), offset
    if tag == _DECIMAL_NAN:
        return Decimal("NaN"), offset
    if tag in (_DECIMAL_INFINITY, _DECIMAL_NEGATIVE_INFINITY):
        return Decimal("Infinity" if tag == _DECIMAL_INFINITY else "-Infinity"), offset
    if tag not in (_DECIMAL, _DECIMAL_NEGATIVE):
        raise ValueError(f"unknown tag {tag:#04x}")
    negative = tag == _DECIMAL_NEGATIVE
    end = data.index(0xFF if negative else 0, offset + 4)
    body = _flip(data[offset:end]) if negative else data[offset:end]
    text = "".join(f"{pair - 1:02d}" for pair in body[4:]).rstrip("0")
    if not text.isdigit():
        raise ValueError("digits are not digits")
    exponent = int.from_bytes(body[:4], "big") - _EXPONENT_BIAS - len(text)
    return Decimal((int(negative), tuple(map(int, text)), exponent)), end + 1


def _flip(data: bytes) -> bytes:
    """All bits flipped: the order of what has no prefix of it, turned round."""
    return bytes(byte ^ 0xFF for byte in data)
