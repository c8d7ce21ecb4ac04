"""The options of COPY: read, and held against each other as PostgreSQL does."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import Any, Final

from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.syntax import NUMBER, QUOTED, STRING, WORD, near, string_value
from compute.sql.utility import Reader
from polarless.errors import CallerMistake

ALL: Final = "*"


@dataclass(slots=True)
class CopyOptions:
    """What WITH (...) says."""

    csv: bool = False
    binary: bool = False
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool = False
    # HEADER MATCH: the first line has to be the names of the columns.
    match: bool = False
    quote: str = '"'
    escape: str | None = None
    # Names of columns, or [ALL].
    force_quote: list[str] = field(default_factory=list)
    force_null: list[str] = field(default_factory=list)
    force_not_null: list[str] = field(default_factory=list)
    # A codec of Python's.
    encoding: str = "utf-8"


def copy_options(reader: Reader, *, out: bool = False) -> CopyOptions:
    """What stands behind STDIN or STDOUT, up to WHERE or the end of the statement."""
    given: dict[str, Any] = {}
    reader.accept("with")
    if reader.accept("("):
        while True:
            key = reader.name()
            if key in given:
                raise SyntaxMistake("conflicting or redundant options")
            given[key] = _columns(reader) if key.startswith("force_") else _value(reader)
            if not reader.accept(","):
                break
        reader.expect(")")
    else:
        _old_options(reader, given)
    if reader.peek is not None and reader.peek.value != "where":
        reader.end()
    return _checked(given, out=out)


def _value(reader: Reader) -> str:
    token = reader.peek
    if token is None or token.value in (",", ")"):
        return "on"
    reader.next()
    if token.kind == STRING:
        return string_value(token)
    if token.kind in (WORD, QUOTED, NUMBER):
        return token.value
    raise not_supported("this COPY option")


def _columns(reader: Reader) -> list[str]:
    if reader.accept("*"):
        return [ALL]
    reader.expect("(")
    names = [reader.name()]
    while reader.accept(","):
        names.append(reader.name())
    reader.expect(")")
    return names


def _old_options(reader: Reader, given: dict[str, Any]) -> None:
    """The form without parentheses."""
    while reader.peek is not None and reader.peek.value != "where":
        if reader.accept("csv"):
            given["format"] = "csv"
        elif reader.accept("binary"):
            given["format"] = "binary"
        elif reader.accept("header") or reader.accept("freeze"):
            given[reader.tokens[reader.position - 1].value] = "on"
        elif reader.accept("force"):
            words = (("quote",), ("not", "null"), ("null",))
            found = next((word for word in words if reader.accept(*word)), None)
            if found is None:
                raise near(reader.next())
            names = [ALL] if reader.accept("*") else [reader.name()]
            while reader.accept(","):
                names.append(reader.name())
            given["_".join(("force", *found))] = names
        else:
            key = reader.name()
            reader.accept("as")
            given[key] = _value(reader)


def _checked(given: dict[str, Any], *, out: bool) -> CopyOptions:
    options = CopyOptions()
    form = given.pop("format", "text").lower()
    if form not in ("text", "csv", "binary"):
        raise CallerMistake(f'COPY format "{form}" not recognized', sqlstate="22023")
    options.csv, options.binary = form == "csv", form == "binary"
    for key in given:
        if key not in _KNOWN:
            raise SyntaxMistake(f'option "{key}" not recognized')
    for key in ("delimiter", "null", "header"):
        if options.binary and key in given:
            state = "0A000" if key == "header" else "42601"
            raise _refused(f"cannot specify {key.upper()} in BINARY mode", state)
    if options.csv:
        options.delimiter, options.null = ",", ""
    for key in ("delimiter", "null", "quote", "escape", *_FORCED):
        if key in given:
            setattr(options, key, given[key])
    _check_signs(options, given)
    for key in _FORCED:
        _check_forced(key, given, csv=options.csv, out=out)
    _read_header(options, given.get("header", "off").lower(), out=out)
    if "encoding" in given:
        options.encoding = _codec(given["encoding"])
    return options


_FORCED: Final = ("force_quote", "force_null", "force_not_null")
_KNOWN: Final = (
    *("freeze", "encoding", "delimiter", "null", "header", "quote", "escape"), *_FORCED
)  # fmt: skip


def _refused(message: str, state: str = "0A000") -> CallerMistake:
    return CallerMistake(message, sqlstate=state)


def _check_signs(options: CopyOptions, given: dict[str, Any]) -> None:
    delimiter, null = options.delimiter, options.null
    if len(delimiter.encode()) != 1:
        raise _refused("COPY delimiter must be a single one-byte character")
    if delimiter in "\r\n":
        raise _refused("COPY delimiter cannot be newline or carriage return", "22023")
    if "\r" in null or "\n" in null:
        raise _refused("COPY null representation cannot use newline or carriage return", "22023")
    if not options.csv and delimiter in "\\.abcdefghijklmnopqrstuvwxyz0123456789":
        raise _refused(f'COPY delimiter cannot be "{delimiter}"', "22023")
    for key in ("quote", "escape"):
        if key in given and not options.csv:
            raise _refused(f"COPY {key} available only in CSV mode")
        if key in given and len(given[key].encode()) != 1:
            raise _refused(f"COPY {key} must be a single one-byte character")
    if options.csv and delimiter == options.quote:
        raise _refused("COPY delimiter and quote must be different", "22023")
    if delimiter in null:
        raise _refused("COPY delimiter must not appear in the NULL specification")
    if options.csv and options.quote in null:
        raise _refused("CSV quote character must not appear in the NULL specification")


def _check_forced(key: str, given: dict[str, Any], *, csv: bool, out: bool) -> None:
    if key not in given:
        return
    words = key.replace("_", " ")
    if not csv:
        raise _refused(f"COPY {words} available only in CSV mode")
    if out != (key == "force_quote"):
        way = "COPY TO" if key == "force_quote" else "COPY FROM"
        raise _refused(f"COPY {words} only available using {way}")


def _read_header(options: CopyOptions, value: str, *, out: bool) -> None:
    if value == "match":
        if out:
            raise _refused('cannot use "match" with HEADER in COPY TO')
        options.header = options.match = True
    elif value in ("on", "true", "1"):
        options.header = True
    elif value not in ("off", "false", "0"):
        raise SyntaxMistake('header requires a Boolean value or "match"')


def _codec(name: str) -> str:
    words = {"unicode": "utf-8", "sql_ascii": "latin-1", "koi8r": "koi8-r"}
    small = name.lower()
    if small.startswith("win"):
        small = f"cp{small[3:]}"
    try:
        return codecs.lookup(words.get(small, small)).name
    except LookupError:
        raise CallerMistake(
            f'argument to option "encoding" must be a valid encoding name: {name}', sqlstate="22023"
        ) from None


def forced(names: list[str], columns: list[str], word: str) -> set[int]:
    """Which of the columns of a COPY are meant. Raises 42P10."""
    if names == [ALL]:
        return set(range(len(columns)))
    for name in names:
        if name not in columns:
            raise CallerMistake(
                f'{word.upper()} column "{name}" not referenced by COPY', sqlstate="42P10"
            )
    return {columns.index(name) for name in names}
