"""A client's messages as bytes, and a server's answers as lines that a test can compare.

``Q("select 1")`` makes bytes; ``lines(answer)`` gives for example
``["T a", "D 1", "C SELECT 1", "Z I"]``.
"""

from __future__ import annotations

import struct

from compute.pgwire.backend import message


def startup(code: int = 3 << 16, **parameters: str) -> bytes:
    body = struct.pack("!I", code)
    for name, value in parameters.items():
        body += name.encode() + b"\0" + value.encode() + b"\0"
    body += b"\0"
    return struct.pack("!I", len(body) + 4) + body


def Q(text: str) -> bytes:  # noqa: N802
    return message(b"Q", text.encode() + b"\0")


def P(text: str, name: str = "", oids: tuple[int, ...] = ()) -> bytes:  # noqa: N802
    body = name.encode() + b"\0" + text.encode() + b"\0"
    return message(b"P", body + struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def B(  # noqa: N802
    *values: str | bytes | None,
    name: str = "",
    portal: str = "",
    formats: tuple[int, ...] = (),
    results: tuple[int, ...] = (0,),
) -> bytes:
    body = portal.encode() + b"\0" + name.encode() + b"\0"
    body += struct.pack(f"!H{len(formats)}H", len(formats), *formats)
    body += struct.pack("!H", len(values))
    for value in values:
        if value is None:
            body += b"\xff\xff\xff\xff"
        else:
            raw = value.encode() if isinstance(value, str) else value
            body += struct.pack("!I", len(raw)) + raw
    return message(b"B", body + struct.pack(f"!H{len(results)}H", len(results), *results))


def D(kind: str = "P", name: str = "") -> bytes:  # noqa: N802
    return message(b"D", kind.encode() + name.encode() + b"\0")


def E(limit: int = 0, portal: str = "") -> bytes:  # noqa: N802
    return message(b"E", portal.encode() + b"\0" + struct.pack("!I", limit))


def C(kind: str, name: str = "") -> bytes:  # noqa: N802
    return message(b"C", kind.encode() + name.encode() + b"\0")


S = message(b"S")
H = message(b"H")
X = message(b"X")


def d(data: str | bytes) -> bytes:
    return message(b"d", data.encode() if isinstance(data, str) else data)


COPY_DONE = message(b"c")


def copy_fail(reason: str) -> bytes:
    return message(b"f", reason.encode() + b"\0")


def frames(data: bytes) -> list[tuple[str, bytes]]:
    """The server's messages as (type, body)."""
    result, position = [], 0
    while position < len(data):
        length = int.from_bytes(data[position + 1 : position + 5], "big")
        assert length >= 4
        assert position + 1 + length <= len(data), "the last message is cut"
        result.append((chr(data[position]), data[position + 5 : position + 1 + length]))
        position += 1 + length
    return result


def lines(data: bytes) -> list[str]:
    """The server's messages, one line each."""
    return [_line(kind, body) for kind, body in frames(data)]


def _line(kind: str, body: bytes) -> str:
    if kind in "EN":
        fields = {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
        return f"{kind} {fields['S']} {fields['C']} {fields['M']}"
    if kind == "T":
        return "T " + " ".join(_column_names(body))
    if kind == "D":
        return "D " + " ".join(_values(body))
    if kind == "S":
        return "S " + "=".join(part.decode() for part in body.split(b"\0")[:2])
    if kind == "t":
        return "t " + " ".join(map(str, struct.unpack_from(f"!{(len(body) - 2) // 4}I", body, 2)))
    if kind in "CZ":
        return f"{kind} {body.rstrip(bytes(1)).decode()}"
    return kind


def _column_names(body: bytes) -> list[str]:
    names, position = [], 2
    for _ in range(int.from_bytes(body[:2], "big")):
        end = body.index(b"\0", position)
        names.append(body[position:end].decode())
        position = end + 19
    assert position == len(body)
    return names


def _values(body: bytes) -> list[str]:
    values, position = [], 2
    for _ in range(int.from_bytes(body[:2], "big")):
        length = int.from_bytes(body[position : position + 4], "big")
        position += 4
        if length == 0xFFFFFFFF:
            values.append("NULL")
            continue
        values.append(body[position : position + length].decode())
        position += length
    assert position == len(body)
    return values
