"""Arrays in queries: constructors, subscripts, ANY and ALL, and the functions that take them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import operators, symbols
from compute.sql.analytics.carriers import carrier_of, element_of, list_of
from compute.sql.analytics.leaves import Leaf
from compute.sql.analytics.lower import RULES, Lowered, Lowering
from compute.sql.arraytypes import ArrayType, array_of
from compute.sql.casts import EXPLICIT, cast
from compute.sql.expressions import Const, Emitter, Node, Strict, call, template
from compute.sql.mistakes import not_supported
from compute.sql.operators import nan_equal, nan_less
from compute.sql.types import (
    BOOL,
    BPCHAR,
    INT4,
    JSONB,
    STRINGS,
    TEXT,
    TEXT_OUTPUT,
    UNKNOWN,
    VARCHAR,
    SqlType,
    display,
)
from polarless.errors import CallerMistake

DIMENSION_MAX: Final = 1_000_000

if TYPE_CHECKING:
    from compute.sql.analytics.binder import AnalyticBinder


def array_type(element: SqlType) -> SqlType:
    """The type of arrays of a type. Raises 0A000 if there is none."""
    found = array_of(element)
    if found is None:
        raise not_supported(f"an array of {display(element)}")
    return found


class ArrayNode(Node):
    """ARRAY[...]."""

    __slots__ = ("items",)

    def __init__(self, items: list[Node], type_: SqlType) -> None:
        super().__init__(type_, nullable=False)
        self.items = items

    def emit(self, out: Emitter) -> str:
        result = out.temp()
        sources = [item.emit(out) for item in self.items]
        out.line(f"{result} = [{', '.join(sources)}]")
        return result

    def children(self) -> tuple[Node, ...]:
        return tuple(self.items)


def _array_rule(low: Lowering, node: Node) -> Lowered:
    assert isinstance(node, ArrayNode)
    element = element_of(node.type)
    assert element is not None
    inner = carrier_of(element, exact=True)
    items = ", ".join(low.sql(item, inner) for item in node.items)
    carrier = list_of(inner)
    return Lowered(f"CAST([{items}] AS {carrier.sql})", carrier)


RULES[ArrayNode] = _array_rule


def bind_array(binder: AnalyticBinder, node: Any) -> Node:
    """``ARRAY[...]`` or ``ARRAY(SELECT ...)``."""
    items = node.expressions
    if len(items) == 1 and isinstance(
        items[0], (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)
    ):
        query = binder.builder.subquery(items[0], binder.level)
        if len(query.leaves) != 1:
            raise CallerMistake("subquery must return only one column", sqlstate="42601")
        leaf = query.leaves[0]
        kind = array_type(leaf.type)
        carrier = list_of(leaf.carrier)
        return Leaf(f"COALESCE(ARRAY({query.sql}), [])", carrier, kind)
    nodes = [binder.bind(item) for item in items]
    if not nodes:
        raise CallerMistake(
            "cannot determine type of empty array",
            sqlstate="42P18",
            hint='Explicitly cast to the desired type, for example "ARRAY[]::integer[]".',
        )
    if any(element_of(found.type) is not None for found in nodes):
        if hasattr(binder, "builder") or any(found.type is not nodes[0].type for found in nodes):
            raise not_supported("an array of arrays")
        return ArrayNode(nodes, nodes[0].type)
    kind = operators.common_type(nodes, "ARRAY")
    return ArrayNode([cast(found, kind) for found in nodes], array_type(kind))


def bind_bracket(binder: AnalyticBinder, node: Any) -> Node:
    """``a[i]`` and ``a[i:j]``."""
    places = [node]
    while isinstance(places[-1].this, exp.Bracket):
        places.append(places[-1].this)
    if len(places) > 1:
        found = _several(binder, places)
        if found is not None:
            return found
    value = binder.bind(node.this)
    kind = value.type
    element = element_of(kind)
    if kind is JSONB and len(node.expressions) == 1:
        return json_subscript(binder, value, node.expressions[0])
    if element is None or len(node.expressions) != 1:
        raise CallerMistake(
            f"cannot subscript type {display(kind)} because it does not support subscripting",
            sqlstate="42804",
        )
    base = getattr(kind, "lower_bound", 1)
    index = node.expressions[0]
    if isinstance(index, exp.Slice):
        ends = [
            None if tree is None else cast(binder.bind(tree), INT4)
            for tree in (index.this, index.expression)
        ]
        low, high = ends
        args = tuple(found for found in (value, low, high) if found is not None)
        function = partial(_slice, low is not None, high is not None)
        return Strict(args, call(_named(function, "slice")), kind, nullable=True)
    place = cast(binder.bind(index), INT4)
    if isinstance(index, (exp.Literal, exp.Neg)):
        # sqlglot has taken one off what it could compute: it thinks of languages that begin at 0.
        place = operators.arithmetic("+", place, Const(1, INT4))
    subscript = _named(partial(_subscript, base), f"subscript{base}")
    return Strict((value, place), call(subscript), element, nullable=True)


def _several(binder: AnalyticBinder, places: list[Any]) -> Node | None:
    """``a[i][j]`` of an array of arrays; None if it is none."""
    value = binder.bind(places[-1].this)
    element = element_of(value.type)
    indexes = [place.expressions[0] for place in reversed(places) if len(place.expressions) == 1]
    plain = not any(isinstance(index, exp.Slice) for index in indexes)
    if element is None or len(indexes) != len(places) or not plain:
        return None
    nodes = []
    for index in indexes:
        place = cast(binder.bind(index), INT4)
        if isinstance(index, (exp.Literal, exp.Neg)):
            place = operators.arithmetic("+", place, Const(1, INT4))
        nodes.append(place)
    return Strict((value, *nodes), call(_at), element, nullable=True)


def assign_element(binder: Any, column: Node, target: Any, value: Any) -> Node:
    """The array of a column with another element: ``SET a[i] = value``."""
    element = element_of(column.type)
    if (
        element is None
        or len(target.expressions) != 1
        or isinstance(target.expressions[0], exp.Slice)
    ):
        raise not_supported("this kind of assignment")
    index = target.expressions[0]
    place = cast(binder.bind(index), INT4)
    if isinstance(index, (exp.Literal, exp.Neg)):
        place = operators.arithmetic("+", place, Const(1, INT4))
    new = cast(binder.bind(value), element, strength=1)
    return _loose((column, place, new), _assign, column.type)


def _assign(items: list[Any] | None, place: int | None, value: Any) -> list[Any]:
    if place is None:
        raise CallerMistake("array subscript in assignment must not be null", sqlstate="22004")
    found = list(items or ())
    if place < 1:
        raise not_supported("an array that begins below 1")
    if place > DIMENSION_MAX:
        raise CallerMistake("array size exceeds the maximum allowed", sqlstate="54000")
    found += [None] * (place - len(found))
    found[place - 1] = value
    return found


def like_any(value: Node, array: Node, *, all_: bool, ignore_case: bool, negate: bool) -> Node:
    """``value [NOT] LIKE ANY | ALL (array)``"""
    array = cast(array, array_type(TEXT)) if array.type is UNKNOWN else array
    if element_of(array.type) not in STRINGS:
        raise CallerMistake("op ANY/ALL (array) requires array on right side", sqlstate="42809")

    def decide(text: str, items: list[Any]) -> bool | None:
        unknown = False
        for item in _flat(items):
            if item is None:
                unknown = True
                continue
            matched = operators.like_matcher(item, "\\", ignore_case)(text) is not None
            if (matched is not negate) is not all_:
                return not all_
        return None if unknown else all_

    return Strict((cast(value, TEXT), array), call(decide), BOOL, nullable=True)


def _at(items: Any, *places: int) -> Any:
    for place in places:
        if not isinstance(items, list) or not 0 < place <= len(items):
            return None
        items = items[place - 1]
    return None if isinstance(items, list) else items


def json_subscript(binder: Any, value: Node, index: Any) -> Node:
    """``value[key]`` of a jsonb."""
    key = binder.bind(index)
    if isinstance(index, (exp.Literal, exp.Neg)) and key.type is INT4:
        # See above: sqlglot counts from 0.
        key = operators.arithmetic("+", key, Const(1, INT4))
    found = symbols.tabled("->", value, key)
    if found is None:
        raise CallerMistake(
            f"subscript type {display(key.type)} is not supported", sqlstate="42804"
        )
    return found


def _named(function: Any, name: str) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    wrapper.__name__ = name
    return wrapper


def _subscript(base: int, items: list[Any], index: int) -> Any:
    place = index - base
    found = items[place] if 0 <= place < len(items) else None
    return None if isinstance(found, list) else found


def _slice(has_low: bool, has_high: bool, items: list[Any], *ends: int) -> list[Any]:
    low = max(ends[0] - 1, 0) if has_low else 0
    high = max(ends[-1], 0) if has_high else len(items)
    return items[low:high]


# -------------------------------------------------------------------------------------- ANY and ALL

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": nan_equal,
    "<>": lambda a, b: not nan_equal(a, b),
    "<": nan_less,
    ">": lambda a, b: nan_less(b, a),
    "<=": lambda a, b: not nan_less(b, a),
    ">=": lambda a, b: not nan_less(a, b),
}


def quantified(symbol: str, value: Node, array: Node, *, all_: bool) -> Node:
    """``value symbol ANY | ALL (array)``."""
    if array.type is UNKNOWN:
        kind = value.type if value.type is not UNKNOWN else TEXT
        array = cast(array, array_type(kind))
    element = element_of(array.type)
    if element is None:
        raise CallerMistake("op ANY/ALL (array) requires array on right side", sqlstate="42809")
    if value.type is UNKNOWN:
        value = cast(value, element)
    elif value.type is not element:
        # The types have to have the operator; the values of one family compare as they are.
        operators.comparable(symbol, value, Leaf("x", carrier_of(element), element))
        if value.type.family != element.family:
            value = cast(value, element, strength=1)
    compare = _COMPARE[symbol]

    def decide(value: Any, items: list[Any]) -> bool | None:
        unknown = False
        for item in _flat(items):
            if item is None:
                unknown = True
            elif compare(value, item) is not all_:
                return not all_
        return None if unknown else all_

    return Strict((value, array), call(decide), BOOL, nullable=True)


def _flat(items: list[Any]) -> list[Any]:
    if items and isinstance(items[0], list):
        return [item for part in items for item in _flat(part)]
    return items


# ---------------------------------------------------------------------------------------- functions


def _length(items: list[Any], dimension: int) -> int | None:
    level: Any = items
    for _ in range(dimension - 1):
        level = level[0] if isinstance(level, list) and level else None
    return len(level) if dimension >= 1 and isinstance(level, list) and level else None


def _lower(items: list[Any], dimension: int) -> int | None:
    return None if _length(items, dimension) is None else 1


def _cardinality(items: list[Any]) -> int:
    return len(_flat(items))


def _dimensions(items: list[Any]) -> int | None:
    count, level = 0, items
    while isinstance(level, list) and level:
        count, level = count + 1, level[0]
    return count or None


def _position(items: list[Any] | None, value: Any) -> int | None:
    if items is None:
        return None
    return next((i + 1 for i, item in enumerate(items) if item == value), None)


def _append(items: list[Any] | None, value: Any) -> list[Any]:
    return [*(items or ()), value]


def _prepend(value: Any, items: list[Any] | None) -> list[Any]:
    return [value, *(items or ())]


def _cat(left: list[Any] | None, right: list[Any] | None) -> list[Any] | None:
    if left is None:
        return right
    return left if right is None else [*left, *right]


def _remove(items: list[Any] | None, value: Any) -> list[Any] | None:
    return None if items is None else [item for item in items if item != value]


def _replace(items: list[Any] | None, old: Any, new: Any) -> list[Any] | None:
    return None if items is None else [new if item == old else item for item in items]


def _positions(items: list[Any] | None, value: Any) -> list[int] | None:
    return None if items is None else [i for i, item in enumerate(items, 1) if item == value]


def _dims(items: list[Any]) -> str | None:
    level: Any = items
    found = ""
    while isinstance(level, list) and level:
        found, level = f"{found}[1:{len(level)}]", level[0]
    return found or None


def _trim(items: list[Any], count: int) -> list[Any]:
    if not 0 <= count <= len(items):
        raise CallerMistake(
            f"number of elements to trim must be between 0 and {len(items)}", sqlstate="2202E"
        )
    return items[: len(items) - count]


def _joiner(element: SqlType) -> Callable[..., str]:
    printer = TEXT_OUTPUT[element]

    def join(items: list[Any], separator: str, null: str | None = None) -> str:
        parts = [
            printer(item).decode() if item is not None else null
            for item in _flat(items)
            if item is not None or null is not None
        ]
        return separator.join(part for part in parts if part is not None)

    return join


def _contains(left: list[Any], right: list[Any]) -> bool:
    return all(item is not None and item in left for item in _flat(right))


def _overlaps(left: list[Any], right: list[Any]) -> bool:
    return any(item is not None and item in left for item in _flat(right))


def concat(left: Node, right: Node) -> Node | None:
    """``||`` of arrays and elements; None if there is no array."""
    kinds = element_of(left.type), element_of(right.type)
    if kinds[0] is not None and (right.type is UNKNOWN or kinds[1] is not None):
        right = cast(right, left.type) if right.type is UNKNOWN else right
        return _loose((left, right), _cat, left.type)
    if kinds[1] is not None and left.type is UNKNOWN:
        return _loose((cast(left, right.type), right), _cat, right.type)
    if kinds[0] is not None:
        return _loose((left, cast(right, kinds[0])), _append, left.type)
    if kinds[1] is not None:
        return _loose((cast(left, kinds[1]), right), _prepend, right.type)
    return None


def _loose(args: tuple[Node, ...], function: Callable[..., Any], kind: SqlType) -> Node:
    """A call that sees NULLs itself."""
    node = operators.AlwaysKnown(args, call(function), kind)
    node.nullable = True
    return node


def compare(symbol: str, left: Node, right: Node) -> Node:
    """``=`` and ``<>`` of arrays."""
    if left.type is UNKNOWN:
        left = cast(left, right.type)
    if right.type is UNKNOWN:
        right = cast(right, left.type)
    if element_of(left.type) is not element_of(right.type):
        raise operators.no_operator(symbol, left, right)
    if symbol in ("=", "<>"):
        source = "{0} == {1}" if symbol == "=" else "{0} != {1}"
        return Strict((left, right), template(source), BOOL)
    return Strict((left, right), template(f"order_({{0}}, {{1}}) {symbol} 0", order_=_order), BOOL)


def _order(left: list[Any], right: list[Any]) -> int:
    """As PostgreSQL orders arrays: by their elements, NULL last, then by length."""
    for a, b in zip(_flat(left), _flat(right)):
        if a is None or b is None:
            if (a is None) != (b is None):
                return 1 if a is None else -1
        elif a != b:
            return -1 if nan_less(a, b) else 1
    return len(_flat(left)) - len(_flat(right))


def contains(left: Node, right: Node, *, overlaps: bool = False) -> Node:
    """``@>`` and ``&&``."""
    if left.type is UNKNOWN:
        left = cast(left, right.type)
    if right.type is UNKNOWN:
        right = cast(right, left.type)
    if element_of(left.type) is None or element_of(right.type) is None:
        raise operators.no_operator("&&" if overlaps else "@>", left, right)
    return Strict((left, right), call(_overlaps if overlaps else _contains), BOOL)


def function(name: str, args: list[Node]) -> Node | None:
    """A call of a function of arrays; None if it is none."""
    count = len(args)
    if name not in _FUNCTIONS or not args:
        return None
    arrays = [arg for arg in args if element_of(arg.type) is not None]
    if not arrays:
        return None
    kind = arrays[0].type
    element = element_of(kind)
    assert element is not None
    if name in ("array_length", "array_upper", "array_lower") and count == 2:
        return Strict(
            (args[0], cast(args[1], INT4)),
            call(_lower if name == "array_lower" else _length),
            INT4,
            nullable=True,
        )
    if name == "cardinality" and count == 1:
        return Strict((args[0],), call(_cardinality), INT4)
    if name == "array_ndims" and count == 1:
        return Strict((args[0],), call(_dimensions), INT4, nullable=True)
    if name == "array_to_string" and 2 <= count <= 3:
        rest = tuple(cast(arg, TEXT) for arg in args[1:])
        return Strict((args[0], *rest), call(_joiner(element)), TEXT)
    if name == "array_position" and count == 2:
        return _loose((args[0], cast(args[1], element)), _position, INT4)
    if name == "array_append" and count == 2:
        return _loose((args[0], cast(args[1], element)), _append, kind)
    if name == "array_prepend" and count == 2:
        if element_of(args[0].type) is not None:
            args = [args[1], args[0]]
        return _loose((cast(args[0], element), args[1]), _prepend, kind)
    if name == "array_remove" and count == 2:
        return _loose((args[0], cast(args[1], element)), _remove, kind)
    if name == "array_replace" and count == 3:
        values = (cast(args[1], element), cast(args[2], element))
        return _loose((args[0], *values), _replace, kind)
    if name == "array_positions" and count == 2:
        result = array_type(INT4)
        return _loose((args[0], cast(args[1], element)), _positions, result)
    if name == "array_dims" and count == 1:
        return Strict((args[0],), call(_dims), TEXT, nullable=True)
    if name == "trim_array" and count == 2:
        return Strict((args[0], cast(args[1], INT4)), call(_trim), kind)
    if name == "array_cat" and count == 2:
        return _loose((args[0], args[1]), _cat, kind)
    return None


_FUNCTIONS: Final = frozenset(
    {"array_length", "array_upper", "array_lower", "cardinality", "array_ndims", "array_to_string",
     "array_position", "array_append", "array_prepend", "array_remove", "array_cat",
     "array_replace", "array_positions", "array_dims", "trim_array"}
)  # fmt: skip


# -------------------------------------------------------------------------------------------- casts


def cast_array(node: Node, target: SqlType) -> Node | None:
    """A cast that has an array on one side; None if it has not."""
    source, wanted = element_of(node.type), element_of(target)
    if source is None and wanted is None:
        return None
    if wanted is None:
        if target not in STRINGS:
            return None
        printer = TEXT_OUTPUT[node.type]

        def text_of(items: list[Any]) -> str:
            return printer(items).decode()

        return Strict((node,), call(text_of), TEXT if target is BPCHAR else target)
    if source is None:
        if node.type is UNKNOWN or node.type not in STRINGS:
            return None
        return cast(node, target, strength=EXPLICIT)
    if node.type is target:
        return node
    if (source in STRINGS and wanted in (TEXT, VARCHAR)) or {source.family, wanted.family} == {
        "int"
    }:
        return Strict((node,), call(_same), target)
    return _converted(node, source, wanted, target)


def _same(items: list[Any]) -> list[Any]:
    return items


def _converted(node: Node, source: SqlType, wanted: SqlType, target: SqlType) -> Node:
    from compute.sql.expressions import Local
    from compute.sql.rowcode import base_names, compile_function

    out = Emitter(base_names())
    result = cast(Local("x", source), wanted, strength=EXPLICIT).emit(out)
    out.line(f"return {result}")
    convert = compile_function("convert", "x", out)

    def each(items: list[Any]) -> list[Any]:
        return [each(item) if isinstance(item, list) else convert(item) for item in items]

    return Strict((node,), call(each), target)


__all__ = ["ArrayType", "array_type", "bind_array", "bind_bracket", "cast_array", "concat"]
