"""Functions and operators of json and jsonb.

A json is the text that was given, a jsonb the text that PostgreSQL prints of it; both are parsed
when a function looks into them.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from compute.sql import scalars
from compute.sql.builtins.signatures import Table, maybe, plain
from compute.sql.builtins.texts import TEXTS
from compute.sql.casts import cast
from compute.sql.expressions import Node, Strict, call
from compute.sql.operators import AlwaysKnown
from compute.sql.types import (
    BOOL,
    BPCHAR,
    INT4,
    JSON,
    JSONB,
    TEXT,
    TEXT_OUTPUT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    SqlType,
    pad,
)
from polarless.errors import CallerMistake

_MISSING: Final = object()
load: Final = scalars.load_json
text_of: Final = scalars.jsonb_text
Printer = Callable[[Any], str]


def is_number(value: Any) -> bool:
    """Whether a parsed value is a number."""
    return isinstance(value, scalars.Number)


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str) and not is_number(value)


# ------------------------------------------------------------------------------------------- paths


def _step(value: Any, step: Any) -> Any:
    if isinstance(value, dict) and isinstance(step, str):
        return value.get(step, _MISSING)
    if isinstance(value, list):
        if isinstance(step, str):
            try:
                step = int(step)
            except ValueError:
                return _MISSING
        return value[step] if -len(value) <= step < len(value) else _MISSING
    return _MISSING


def _walk(text: str, steps: list[str | None]) -> Any:
    value = load(text)
    for step in steps:
        if step is None:
            return _MISSING
        value = _step(value, step)
        if value is _MISSING:
            return _MISSING
    return value


def as_text(value: Any, printer: Printer = text_of) -> str | None:
    """What ``->>`` gives: strings without quotes, NULL for null."""
    if value is None or value is _MISSING:
        return None
    return str(value) if is_text(value) else printer(value)


def _printer(kind: SqlType) -> Printer:
    return text_of if kind is JSONB else scalars.json_text


def _at_path(text: str, path: list[str | None]) -> str | None:
    found = _walk(text, path)
    return None if found is _MISSING else text_of(found)


def _at_path_json(text: str, path: list[str | None]) -> str | None:
    found = _walk(text, path)
    return None if found is _MISSING else scalars.json_text(found)


def _text_at_path(text: str, path: list[str | None]) -> str | None:
    return as_text(_walk(text, path))


def _text_at_path_json(text: str, path: list[str | None]) -> str | None:
    return as_text(_walk(text, path), scalars.json_text)


def at(kind: SqlType, as_texts: bool) -> Callable[[str, Any], str | None]:
    """``->`` and ``->>`` by a key or an index."""
    printer = _printer(kind)

    def json_at(text: str, step: Any) -> str | None:
        value = load(text)
        wanted = dict if isinstance(step, str) else list
        found = _step(value, step) if isinstance(value, wanted) else _MISSING
        if as_texts:
            return as_text(found, printer)
        return None if found is _MISSING else printer(found)

    return json_at


# ---------------------------------------------------------------------------------------- contains


def _equal(left: Any, right: Any) -> bool:
    if is_number(left) and is_number(right):
        return Decimal(left) == Decimal(right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return type(left) is type(right) and bool(left == right)


def _has(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return all(key in left and _has(left[key], item) for key, item in right.items())
    if isinstance(left, list) and isinstance(right, list):
        return all(any(_has(mine, item) for mine in left) for item in right)
    return _equal(left, right)


def _contains(left: str, right: str) -> bool:
    one, two = load(left), load(right)
    if isinstance(one, list) and not isinstance(two, (list, dict)):
        return any(_equal(item, two) for item in one)
    return _has(one, two)


def _contained(left: str, right: str) -> bool:
    return _contains(right, left)


def _exists(text: str, key: str) -> bool:
    value = load(text)
    if isinstance(value, dict):
        return key in value
    if isinstance(value, list):
        return any(is_text(item) and item == key for item in value)
    return is_text(value) and bool(value == key)


def _exists_any(text: str, keys: list[str | None]) -> bool:
    return any(key is not None and _exists(text, key) for key in keys)


def _exists_all(text: str, keys: list[str | None]) -> bool:
    return all(key is None or _exists(text, key) for key in keys)


# ------------------------------------------------------------------------------------------ changes


def _concat(left: str, right: str) -> str:
    one, two = load(left), load(right)
    if isinstance(one, dict) and isinstance(two, dict):
        return text_of({**one, **two})
    if isinstance(one, dict) != isinstance(two, dict) and not (
        isinstance(one, list) or isinstance(two, list)
    ):
        raise CallerMistake("invalid concatenation of jsonb objects", sqlstate="22023")
    return text_of(
        (one if isinstance(one, list) else [one]) + (two if isinstance(two, list) else [two])
    )


def _delete(text: str, what: Any) -> str:
    value = load(text)
    if not isinstance(value, (dict, list)):
        raise CallerMistake("cannot delete from scalar", sqlstate="22023")
    if isinstance(what, int):
        if isinstance(value, dict):
            raise CallerMistake("cannot delete from object using integer index", sqlstate="22023")
        if -len(value) <= what < len(value):
            del value[what]
        return text_of(value)
    keys = set(what) if isinstance(what, list) else {what}
    if isinstance(value, dict):
        return text_of({key: item for key, item in value.items() if key not in keys})
    return text_of([item for item in value if not (is_text(item) and item in keys)])


def _delete_path(text: str, path: list[str | None]) -> str:
    value = load(text)
    if not isinstance(value, (dict, list)):
        raise CallerMistake("cannot delete path in scalar", sqlstate="22023")
    target: Any = value
    for step in path[:-1]:
        target = _step(target, step)
        if target is _MISSING:
            return text_of(value)
    if path and _step(target, path[-1]) is not _MISSING:
        last: Any = path[-1]
        del target[int(last) if isinstance(target, list) else last]
    return text_of(value)


def _set(text: str, path: list[str | None], new: str, create: bool = True) -> str:
    return _changed(text, path, load(new), create=create, insert=None)


def _insert(text: str, path: list[str | None], new: str, after: bool = False) -> str:
    return _changed(text, path, load(new), create=True, insert=after)


def _changed(
    text: str, path: list[str | None], new: Any, *, create: bool, insert: bool | None
) -> str:
    value = load(text)
    if not isinstance(value, (dict, list)):
        raise CallerMistake("cannot set path in scalar", sqlstate="22023")
    target: Any = value
    for step in path[:-1]:
        target = _step(target, step)
        if not isinstance(target, (dict, list)):
            return text_of(value)
    if not path:
        return text_of(value)
    last: Any = path[-1]
    if isinstance(target, dict):
        known = last in target
        if insert is not None and known:
            raise CallerMistake(
                "cannot replace existing key",
                sqlstate="22023",
                hint="Try using the function jsonb_set to replace key value.",
            )
        if known or create:
            target[last] = new
        return text_of(value)
    try:
        place = int(last)
    except ValueError:
        raise CallerMistake(
            f'path element at position {len(path)} is not an integer: "{last}"', sqlstate="22P02"
        ) from None
    if insert is not None:
        place = place if place >= 0 else max(len(target) + place, -1)
        target.insert(place + 1 if insert else max(place, 0), new)
    elif -len(target) <= place < len(target):
        target[place] = new
    elif create:
        target.insert(0 if place < 0 else len(target), new)
    return text_of(value)


def _strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strip(item) for key, item in value.items() if item is not None}
    return [_strip(item) for item in value] if isinstance(value, list) else value


def _strip_nulls(text: str) -> str:
    return text_of(_strip(load(text)))


def _strip_nulls_json(text: str) -> str:
    return scalars.json_text(_strip(load(text)))


# ------------------------------------------------------------------------------------------- looks


def _type_of(text: str) -> str:
    value = load(text)
    if is_number(value):
        return "number"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "null"


def _array_length(text: str) -> int:
    value = load(text)
    if not isinstance(value, list):
        kind = "an object" if isinstance(value, dict) else "a scalar"
        what = "a non-array" if isinstance(value, dict) else "a scalar"
        raise CallerMistake(f"cannot get array length of {what}" if kind else "", sqlstate="22023")
    return len(value)


def _pretty(text: str) -> str:
    return _indented(load(text), 0)


def _indented(value: Any, depth: int) -> str:
    inner, outer = "    " * (depth + 1), "    " * depth
    if isinstance(value, dict):
        items = [
            f"{inner}{scalars.json_quoted(key)}: {_indented(item, depth + 1)}"
            for key, item in scalars.sorted_items(value)
        ]
        return "{\n" + ",\n".join(items) + f"\n{outer}}}" if items else "{\n" + outer + "}"
    if isinstance(value, list):
        parts = [inner + _indented(item, depth + 1) for item in value]
        return "[\n" + ",\n".join(parts) + f"\n{outer}]" if parts else "[\n" + outer + "]"
    return text_of(value)


def elements(text: str) -> list[Any]:
    """The elements of an array. Raises 22023."""
    value = load(text)
    if not isinstance(value, list):
        what = "an object" if isinstance(value, dict) else "a scalar"
        raise CallerMistake(f"cannot extract elements from {what}", sqlstate="22023")
    return value


def items_of(text: str, name: str) -> list[tuple[str, Any]]:
    """The keys and values of an object. Raises 22023."""
    value = load(text)
    if not isinstance(value, dict):
        what = "an array" if isinstance(value, list) else "a scalar"
        raise CallerMistake(f"cannot call {name} on {what}", sqlstate="22023")
    return list(value.items())


# -------------------------------------------------------------------------------------- from values


def encoder(kind: SqlType, typmod: int = -1) -> Callable[[Any], str]:
    """From a value that is not NULL to its JSON."""
    element = getattr(kind, "element", None)
    if element is not None:
        inner = encoder(element)

        def array(items: list[Any]) -> str:
            parts = [
                "null" if x is None else array(x) if isinstance(x, list) else inner(x)
                for x in items
            ]
            return f"[{','.join(parts)}]"

        return array
    if kind in (JSON, JSONB):
        return str
    if kind is BOOL:
        return lambda value: "true" if value else "false"
    printer = TEXT_OUTPUT[kind]
    if kind.family in ("int", "numeric", "float"):

        def number(value: Any) -> str:
            text = printer(value).decode()
            return text if text.lstrip("-")[:1].isdigit() else scalars.json_quoted(text)

        return number
    if kind in (TIMESTAMP, TIMESTAMPTZ):

        def moment(value: Any) -> str:
            text = printer(value).decode().replace(" ", "T", 1)
            if kind is TIMESTAMPTZ and text[-3:-2] in "+-" and text[:1].isdigit():
                text += ":00"
            return scalars.json_quoted(text)

        return moment
    if kind is BPCHAR:
        return lambda value: scalars.json_quoted(pad(value, typmod))
    return lambda value: scalars.json_quoted(printer(value).decode())


def encoded(node: Node) -> Node:
    """A node as its JSON, NULL as None."""
    if node.type is UNKNOWN:
        node = cast(node, TEXT)
    return Strict((node,), call(encoder(node.type, node.pad)), TEXT)


def row(names: list[str], nodes: list[Node]) -> Node:
    """A whole row as an object, as row_to_json() prints it."""
    keys = [scalars.json_quoted(name) for name in names]

    def whole_row(*values: str | None) -> str:
        return "{" + ",".join(f"{k}:{_null(v)}" for k, v in zip(keys, values)) + "}"

    made = AlwaysKnown(tuple(map(encoded, nodes)), call(whole_row), JSON)
    made.nullable = False
    return made


def join(items: list[str | None] | None, separator: str, binary: bool) -> str | None:
    """json_agg() of the elements' JSON."""
    if items is None:
        return None
    text = f"[{separator.join(map(_null, items))}]"
    return scalars.parse_jsonb(text) if binary else text


def pairs(
    keys: list[str | None] | None, values: list[str | None] | None, binary: bool
) -> str | None:
    """json_object_agg()."""
    if keys is None or values is None:
        return None
    parts = []
    for key, value in zip(keys, values):
        if key is None:
            raise CallerMistake("field name must not be null", sqlstate="22004")
        parts.append(f"{scalars.json_quoted(key)} : {_null(value)}")
    text = f"{{ {', '.join(parts)} }}"
    return scalars.parse_jsonb(text) if binary else text


def _null(text: str | None) -> str:
    return "null" if text is None else text


def _to_json(binary: bool) -> Callable[[list[Node]], Node | None]:
    def special(args: list[Node]) -> Node | None:
        if len(args) != 1:
            return None
        if args[0].type is UNKNOWN:
            raise CallerMistake(
                "could not determine polymorphic type because input has type unknown",
                sqlstate="42804",
            )
        node = encoded(args[0])
        if binary:
            return Strict((node,), call(scalars.parse_jsonb), JSONB)
        node.type = JSON
        return node

    return special


def _build_array(binary: bool) -> Callable[[list[Node]], Node | None]:
    def build_array(*parts: str | None) -> str:
        text = f"[{', '.join(map(_null, parts))}]"
        return scalars.parse_jsonb(text) if binary else text

    def special(args: list[Node]) -> Node | None:
        node = AlwaysKnown(tuple(map(encoded, args)), call(build_array), JSONB if binary else JSON)
        node.nullable = False
        return node

    return special


def key(node: Node) -> Node:
    if node.type is UNKNOWN:
        return cast(node, TEXT)
    return cast(node, TEXT, strength=1)


def _build_object(binary: bool) -> Callable[[list[Node]], Node | None]:
    def build_object(*parts: str | None) -> str:
        pairs: list[str] = []
        for key, value in zip(parts[::2], parts[1::2]):
            if key is None:
                raise CallerMistake(
                    f"argument {2 * len(pairs) + 1}: key must not be null"
                    if binary
                    else f"argument {2 * len(pairs) + 1} cannot be null",
                    sqlstate="22023",
                )
            pairs.append(f"{scalars.json_quoted(key)} : {_null(value)}")
        text = f"{{{', '.join(pairs)}}}"
        return scalars.parse_jsonb(text) if binary else text

    def special(args: list[Node]) -> Node | None:
        if len(args) % 2:
            raise CallerMistake(
                "argument list must have even number of elements",
                sqlstate="22023",
                hint="The arguments of "
                f"{'jsonb' if binary else 'json'}_build_object() must consist of alternating keys "
                "and values.",
            )
        nodes = tuple(encoded(arg) if index % 2 else key(arg) for index, arg in enumerate(args))
        node = AlwaysKnown(nodes, call(build_object), JSONB if binary else JSON)
        node.nullable = False
        return node

    return special


def _extract(as_texts: bool, kind: SqlType) -> Callable[[list[Node]], Node | None]:
    printer = _printer(kind)

    def extract_path(text: str, *steps: str) -> str | None:
        found = _walk(text, list(steps))
        if as_texts:
            return as_text(found, printer)
        return None if found is _MISSING else printer(found)

    def special(args: list[Node]) -> Node | None:
        if not args:
            return None
        nodes = (cast(args[0], kind), *(cast(arg, TEXT) for arg in args[1:]))
        return Strict(nodes, call(extract_path), TEXT if as_texts else kind, nullable=True)

    return special


def _object_of(binary: bool) -> Callable[..., str]:
    def json_object(keys: list[Any], values: list[Any] | None = None) -> str:
        if values is None:
            flat = [item for pair in keys for item in (pair if isinstance(pair, list) else [pair])]
            if len(flat) % 2:
                raise CallerMistake("array must have even number of elements", sqlstate="2202E")
            keys, values = flat[::2], flat[1::2]
        if len(keys) != len(values):
            raise CallerMistake("mismatched array dimensions", sqlstate="2202E")
        parts = []
        for key, value in zip(keys, values):
            if key is None:
                raise CallerMistake("null value not allowed for object key", sqlstate="22004")
            shown = "null" if value is None else scalars.json_quoted(value)
            parts.append(f"{scalars.json_quoted(key)} : {shown}")
        text = f"{{{', '.join(parts)}}}"
        return scalars.parse_jsonb(text) if binary else text

    return json_object


SPECIAL: Final[dict[str, Callable[[list[Node]], Node | None]]] = {
    "row_to_json": _to_json(False),
    "to_json": _to_json(False),
    "to_jsonb": _to_json(True),
    "array_to_json": _to_json(False),
    "json_build_array": _build_array(False),
    "jsonb_build_array": _build_array(True),
    "json_build_object": _build_object(False),
    "jsonb_build_object": _build_object(True),
    "json_extract_path": _extract(False, JSON),
    "jsonb_extract_path": _extract(False, JSONB),
    "json_extract_path_text": _extract(True, JSON),
    "jsonb_extract_path_text": _extract(True, JSONB),
}
TABLE: Final[Table] = {
    "json_typeof": (plain((JSON,), TEXT, _type_of),),
    "jsonb_typeof": (plain((JSONB,), TEXT, _type_of),),
    "json_array_length": (plain((JSON,), INT4, _array_length),),
    "jsonb_array_length": (plain((JSONB,), INT4, _array_length),),
    "jsonb_pretty": (plain((JSONB,), TEXT, _pretty),),
    "jsonb_strip_nulls": (plain((JSONB,), JSONB, _strip_nulls),),
    "json_strip_nulls": (plain((JSON,), JSON, _strip_nulls_json),),
    "jsonb_set": (
        plain((JSONB, TEXTS, JSONB), JSONB, _set),
        plain((JSONB, TEXTS, JSONB, BOOL), JSONB, _set),
    ),
    "jsonb_insert": (
        plain((JSONB, TEXTS, JSONB), JSONB, _insert),
        plain((JSONB, TEXTS, JSONB, BOOL), JSONB, _insert),
    ),
    "json_object": (
        plain((TEXTS,), JSON, _object_of(False)),
        plain((TEXTS, TEXTS), JSON, _object_of(False)),
    ),
    "jsonb_object": (
        plain((TEXTS,), JSONB, _object_of(True)),
        plain((TEXTS, TEXTS), JSONB, _object_of(True)),
    ),
}
# Operators, by their symbol.
OPERATORS: Final[Table] = {
    "->": (
        maybe((JSONB, TEXT), JSONB, at(JSONB, False)),
        maybe((JSONB, INT4), JSONB, at(JSONB, False)),
        maybe((JSON, TEXT), JSON, at(JSON, False)),
        maybe((JSON, INT4), JSON, at(JSON, False)),
    ),
    "->>": (
        maybe((JSONB, TEXT), TEXT, at(JSONB, True)),
        maybe((JSONB, INT4), TEXT, at(JSONB, True)),
        maybe((JSON, TEXT), TEXT, at(JSON, True)),
        maybe((JSON, INT4), TEXT, at(JSON, True)),
    ),
    "#>": (
        maybe((JSONB, TEXTS), JSONB, _at_path),
        maybe((JSON, TEXTS), JSON, _at_path_json),
    ),
    "#>>": (
        maybe((JSONB, TEXTS), TEXT, _text_at_path),
        maybe((JSON, TEXTS), TEXT, _text_at_path_json),
    ),
    "@>": (plain((JSONB, JSONB), BOOL, _contains),),
    "<@": (plain((JSONB, JSONB), BOOL, _contained),),
    "?": (plain((JSONB, TEXT), BOOL, _exists),),
    "?|": (plain((JSONB, TEXTS), BOOL, _exists_any),),
    "?&": (plain((JSONB, TEXTS), BOOL, _exists_all),),
    "||": (plain((JSONB, JSONB), JSONB, _concat),),
    "-": (
        plain((JSONB, TEXT), JSONB, _delete),
        plain((JSONB, INT4), JSONB, _delete),
        plain((JSONB, TEXTS), JSONB, _delete),
    ),
    "#-": (plain((JSONB, TEXTS), JSONB, _delete_path),),
}
