"""Transcripts of what PostgreSQL 15 answers: the form, and how to record them.

    statement
    ---
    name:type oid:modifier | ...        the columns, if there are any
    value | \\N | ...                    rows in text format
    = SELECT 2                          the command tag
                                        or: ! 42P01 the message

A blank line ends a block. To record (again) from a running server, with the statements of a file:

    python -m tests.unit.sql.transcripts "host=/tmp port=5432 dbname=postgres" FILE...

A statement whose answer differs on purpose is marked by a line ``# differs: reason`` above it, and
keeps our answer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "transcripts"


class Block(NamedTuple):
    """One statement with its answer; ``differs`` says why it is not PostgreSQL's."""

    statement: str
    answer: list[str]
    differs: str | None


def read(path: Path) -> list[Block]:
    """The blocks of a file."""
    blocks: list[Block] = []
    for part in path.read_text(encoding="utf-8").split("\n\n"):
        lines = part.strip("\n").split("\n")
        differs = None
        if lines[0].startswith("# differs: "):
            differs = lines.pop(0).removeprefix("# differs: ")
        if not lines or not lines[0] or lines[0].startswith("#"):
            continue
        answer = lines[2:] if lines[1:2] == ["---"] else []
        blocks.append(Block(lines[0], answer, differs))
    return blocks


def write(path: Path, head: str, blocks: list[Block]) -> None:
    """The inverse of `read`; ``head`` is the comment at the top."""
    parts = [head]
    for block in blocks:
        lines = [f"# differs: {block.differs}"] if block.differs else []
        parts.append("\n".join([*lines, block.statement, "---", *block.answer]))
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def answer_lines(columns: list[tuple[str, int, int]], rows: list[Any], tag: str) -> list[str]:
    """The lines of a successful answer."""
    lines = [" | ".join(f"{name}:{oid}:{typmod}" for name, oid, typmod in columns)]
    lines += [" | ".join("\\N" if v is None else _one_line(v) for v in row) for row in rows]
    return [*(lines if columns else []), f"= {tag}"]


def error_lines(sqlstate: str, message: str) -> list[str]:
    """The line of an error."""
    return [f"! {sqlstate} {_one_line(message)}"]


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def record(conninfo: str, paths: list[str]) -> None:
    """Ask a PostgreSQL for the answers of the statements in these files."""
    from psycopg import pq

    server = pq.PGconn.connect(conninfo.encode())
    for name in paths:
        path = Path(name)
        server.exec_(b"drop schema public cascade; create schema public; set timezone = 'UTC'")
        head = path.read_text(encoding="utf-8").split("\n\n")[0]
        blocks = []
        for block in read(path):
            result = server.exec_(block.statement.encode())
            if block.differs:
                blocks.append(block)
                continue
            blocks.append(block._replace(answer=_recorded(result, pq)))
        write(path, head, blocks)


def _recorded(result: Any, pq: Any) -> list[str]:
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
    if sqlstate:
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
        return error_lines(sqlstate.decode(), message.decode())
    columns = [
        (result.fname(i).decode(), result.ftype(i), result.fmod(i)) for i in range(result.nfields)
    ]
    rows = [
        [
            None if (value := result.get_value(row, i)) is None else value.decode()
            for i in range(result.nfields)
        ]
        for row in range(result.ntuples)
    ]
    return answer_lines(columns, rows, (result.command_status or b"").decode())


if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2:])
