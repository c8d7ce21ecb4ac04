"""The errors of SQL, worded as PostgreSQL words them, each made in one place.

They are all `CallerMistake`: a class of its own would not make a caller act differently. A syntax
error also knows where in the text it is, in characters from 1.
"""

from __future__ import annotations

from polarless.errors import CallerMistake, PolarlessError, Reroute


class SyntaxMistake(CallerMistake):
    """The text is not SQL that is understood here. ``position`` counts characters from 1."""

    def __init__(self, message: str, *, position: int | None = None, hint: str | None = None):
        super().__init__(message, sqlstate="42601", hint=hint)
        self.position = position


def not_supported(what: str, *, hint: str | None = None) -> CallerMistake:
    """``what`` is valid SQL, and not built here (yet)."""
    return CallerMistake(f"{what} is not supported", sqlstate="0A000", hint=hint)


def unknown_table(name: str) -> CallerMistake:
    """No relation has this name."""
    return CallerMistake(f'relation "{name}" does not exist', sqlstate="42P01")


def unknown_column(name: str, table: str | None = None) -> CallerMistake:
    """No column has this name."""
    where = f' of relation "{table}"' if table else ""
    return CallerMistake(f'column "{name}"{where} does not exist', sqlstate="42703")


def unknown_type(name: str) -> CallerMistake:
    """No type has this name."""
    return CallerMistake(f'type "{name}" does not exist', sqlstate="42704")


def bad_text(type_name: str, text: str) -> CallerMistake:
    """The text is no value of the type."""
    return CallerMistake(
        f'invalid input syntax for type {type_name}: "{text[:200]}"', sqlstate="22P02"
    )


def bad_binary(type_name: str) -> CallerMistake:
    """The bytes of a binary parameter are no value of the type."""
    return CallerMistake(
        f"incorrect binary data format for a parameter of type {type_name}", sqlstate="22P03"
    )


def out_of_range(type_name: str) -> CallerMistake:
    """The result of an operation is no value of the type."""
    return CallerMistake(f"{type_name} out of range", sqlstate="22003")


def value_out_of_range(value: object, type_name: str) -> CallerMistake:
    """A literal or parameter is no value of the type."""
    return CallerMistake(f'value "{value}" is out of range for type {type_name}', sqlstate="22003")


def too_long(type_name: str) -> CallerMistake:
    """A text does not fit its column."""
    return CallerMistake(f"value too long for type {type_name}", sqlstate="22001")


def division_by_zero() -> CallerMistake:
    """Raised by ``/`` and ``%``."""
    return CallerMistake("division by zero", sqlstate="22012")


def named(error: CallerMistake, schema: str, table: str, constraint: str = "") -> CallerMistake:
    """``error`` with the names of what is concerned, which clients read from its fields."""
    error.schema_name, error.table_name = schema, table
    if constraint:
        error.constraint_name = constraint
    return error


def null_in_column(column: str, table: str) -> CallerMistake:
    """A NOT NULL column was given no value."""
    error = CallerMistake(
        f'null value in column "{column}" of relation "{table}" violates not-null constraint',
        sqlstate="23502",
    )
    error.table_name, error.column_name = table, column
    return error


def duplicate_key(constraint: str, columns: tuple[str, ...], values: list[str]) -> CallerMistake:
    """A row with this key exists."""
    error = CallerMistake(
        f'duplicate key value violates unique constraint "{constraint}"',
        sqlstate="23505",
        detail=f"Key ({', '.join(columns)})=({', '.join(values)}) already exists.",
    )
    error.constraint_name = constraint
    return error


def duplicate_in_table(
    constraint: str, columns: tuple[str, ...], values: list[str]
) -> CallerMistake:
    """ALTER TABLE found two rows with this key."""
    return CallerMistake(
        f'could not create unique index "{constraint}"',
        sqlstate="23505",
        detail=f"Key ({', '.join(columns)})=({', '.join(values)}) is duplicated.",
    )


def read_only(verb: str, *, node_is_reader: bool) -> PolarlessError:
    """A write where nothing may be written."""
    message = f"cannot execute {verb} in a read-only transaction"
    if node_is_reader:
        return Reroute(
            message,
            hint="This node is a reader (RO). Connect to the cluster's URL, which leads to the "
            "writer: `polarless status` shows it.",
        )
    return CallerMistake(
        message,
        sqlstate="25006",
        hint="Begin the transaction with READ WRITE, or SET transaction_read_only = off.",
    )


def row_too_large(row_bytes: int, limit_bytes: int) -> CallerMistake:
    """A row is longer than a row may be."""
    return CallerMistake(
        f"row of {row_bytes} bytes exceeds the limit of {limit_bytes}",
        sqlstate="54000",
        hint="Split the value over several rows.",
    )
