"""Runs statements on two servers and says where they differ.

A file of statements is SQL, each statement ending in ``;`` at the end of a line. A comment before a
statement may say ``-- differs: why``: then the two must differ. Rows are compared in their order if
the statement has an ORDER BY, else as a bag.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq

FOLDER = Path(__file__).with_name("statements")


# The oids of what users make are nobody's business but the server's.
FIRST_OF_USERS = 16384

_FIELDS = (
    pq.DiagnosticField.SCHEMA_NAME,
    pq.DiagnosticField.TABLE_NAME,
    pq.DiagnosticField.COLUMN_NAME,
    pq.DiagnosticField.CONSTRAINT_NAME,
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.MESSAGE_DETAIL,
)


@dataclass(frozen=True)
class Statement:
    """One statement of a file; ``differs`` is the reason if it is known to."""

    text: str
    line: int
    differs: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a server answered."""

    state: str
    tag: str = ""
    columns: tuple[tuple[str, int, int], ...] = ()
    rows: tuple[tuple[bytes | None, ...], ...] = ()
    message: str = ""
    # Of an error: schema, table, column, constraint; and what it says if a constraint is violated.
    fields: tuple[str, ...] = ()


def read(path: Path) -> list[Statement]:
    """The statements of a file."""
    found: list[Statement] = []
    lines: list[str] = []
    differs, start = "", 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        bare = line.strip()
        if not lines and (not bare or bare.startswith("--")):
            if bare.startswith("-- differs:"):
                differs = bare.removeprefix("-- differs:").strip()
            continue
        if not lines:
            start = number
        lines.append(line)
        if bare.endswith(";"):
            found.append(Statement("\n".join(lines).rstrip()[:-1], start, differs))
            lines, differs = [], ""
    assert not lines, f"{path.name} ends within a statement"
    return found


def ask(
    connection: psycopg.Connection[Any],
    text: str,
    *,
    binary: bool = False,
    values: list[str] | None = None,
) -> Outcome:
    """Run one statement as it is written, perhaps with parameters as text."""
    raw = connection.pgconn
    if binary or values is not None:
        sent = [value.encode() for value in values or ()]
        result = raw.exec_params(text.encode(), sent, result_format=int(binary))
    else:
        result = raw.exec_(text.encode())
    if result.status == pq.ExecStatus.FATAL_ERROR:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        said = [(result.error_field(field) or b"").decode() for field in _FIELDS]
        if not state.startswith("23"):
            said = said[:-2]
        return Outcome(state, message=result.get_error_message(), fields=tuple(said))
    columns = tuple(
        ((result.fname(i) or b"").decode(), min(result.ftype(i), FIRST_OF_USERS), result.fmod(i))
        for i in range(result.nfields)
    )
    rows = tuple(
        tuple(result.get_value(row, i) for i in range(result.nfields))
        for row in range(result.ntuples)
    )
    return Outcome("", (result.command_status or b"").decode(), columns, rows)


def difference(text: str, theirs: Outcome, ours: Outcome) -> str:
    """Where our answer is not theirs; empty if it is."""
    if theirs.state != ours.state:
        told = f" ({ours.message.strip()})" if ours.state else ""
        return f"SQLSTATE {theirs.state or 'none'} there, {ours.state or 'none'} here{told}"
    for what in ("tag", "columns", "fields"):
        there, here = getattr(theirs, what), getattr(ours, what)
        if there != here:
            return f"{what}: {there!r} there, {here!r} here"
    ordered = "order by" in text.lower()
    there_rows: Any = theirs.rows if ordered else Counter(theirs.rows)
    here_rows: Any = ours.rows if ordered else Counter(ours.rows)
    if there_rows != here_rows:
        if not ordered:
            there_rows = sorted((there_rows - here_rows).elements(), key=repr)
            here_rows = sorted((Counter(ours.rows) - Counter(theirs.rows)).elements(), key=repr)
        else:
            pairs = [(a, b) for a, b in zip(theirs.rows, ours.rows) if a != b]
            there_rows, here_rows = [a for a, _ in pairs], [b for _, b in pairs]
        return f"rows: {list(there_rows)[:5]!r} there, {list(here_rows)[:5]!r} here"
    return ""


_OBJECTS = """
    select case table_type when 'VIEW' then 'view' else 'table' end, table_schema, table_name
    from information_schema.tables
    where table_schema not in ('pg_catalog', 'information_schema', 'polarless')
    union all select 'sequence', sequence_schema, sequence_name from information_schema.sequences
    union all select 'schema', nspname, '' from pg_namespace
    where nspname !~ '^pg_' and nspname not in ('public', 'information_schema', 'polarless')
    union all select 'type', nspname, typname from pg_type t join pg_namespace n
    on n.oid = typnamespace where typtype = 'e'
"""


def clean(connection: psycopg.Connection[Any]) -> None:
    """Drop what the statements of another file have left."""
    for kind, schema, name in connection.execute(_OBJECTS).fetchall():
        place = f'"{schema}"."{name}"' if name else f'"{schema}"'
        connection.execute(f"drop {kind} if exists {place} cascade".encode())


def run(theirs: psycopg.Connection[Any], ours: psycopg.Connection[Any], path: Path) -> list[str]:
    """Run a file on both. Returns what is wrong, a line each."""
    wrong: list[str] = []
    for statement in read(path):
        wrong += run_one(theirs, ours, statement, path.name)
    return wrong


def run_one(
    theirs: psycopg.Connection[Any],
    ours: psycopg.Connection[Any],
    statement: Statement,
    name: str,
) -> list[str]:
    """Run one statement on both: as a Query, and if it gives rows again in binary."""
    text = statement.text
    there, here = ask(theirs, text), ask(ours, text)
    found = difference(text, there, here)
    if (
        not found
        and there.columns
        and all(oid != FIRST_OF_USERS for _, oid, _ in there.columns)
        and text.lstrip(" (").lower().startswith(("select", "with", "val"))
    ):
        found = difference(text, ask(theirs, text, binary=True), ask(ours, text, binary=True))
        found = found and f"in binary, {found}"
    where = f"{name}:{statement.line}: {' '.join(text.split())[:200]}"
    if found and not statement.differs:
        return [f"{where}\n    {found}"]
    if statement.differs and not found:
        return [f"{where}\n    does not differ, but is said to: {statement.differs}"]
    return []
