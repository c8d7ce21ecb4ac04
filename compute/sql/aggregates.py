"""COUNT, SUM, MIN, MAX, AVG, BOOL_AND, BOOL_OR: generated updates, and what they come to.

A group's state is a list ``a`` with one entry per aggregate:

    count                 a number
    sum, min, max, bool_* None until the first value
    avg                   None, then [sum, count]
    anything DISTINCT     the set of values

SUM and AVG of integers add Python ints, which do not overflow; the result is checked at the end.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from compute.sql import numerics
from compute.sql.expressions import Aggregate, Emitter
from compute.sql.mistakes import out_of_range
from compute.sql.operators import nan_less
from compute.sql.types import FLOAT4, INT8, NUMERIC


def initial(aggregates: list[Aggregate]) -> list[Any]:
    """The state of a group without rows."""
    return [
        set() if found.distinct else 0 if found.function == "count" else None
        for found in aggregates
    ]


def emit_update(out: Emitter, found: Aggregate) -> None:
    """One row's contribution."""
    state = f"a[{found.index}]"
    if found.arg is None:
        out.line(f"{state} += 1")
        return
    value = found.arg.emit(out)
    if found.arg.nullable:
        with out.block(f"if {value} is not None"):
            _emit_value(out, found, state, value)
    else:
        _emit_value(out, found, state, value)


def _emit_value(out: Emitter, found: Aggregate, state: str, value: str) -> None:
    assert found.arg is not None
    function = found.function
    if found.distinct:
        out.line(f"{state}.add({value})")
    elif function == "count":
        out.line(f"{state} += 1")
    elif function == "sum":
        out.names["add_"] = adder(found)
        total = f"add_({state}, {value})" if found.arg.type is NUMERIC else f"{state} + {value}"
        out.line(f"{state} = {value} if {state} is None else {total}")
    elif function == "avg":
        out.names["add_"] = adder(found)
        out.line(f"s = {state}")
        with out.block("if s is None"):
            out.line(f"{state} = [{value}, 1]")
        with out.block("else"):
            exact = found.arg.type is NUMERIC
            out.line(f"s[0] = add_(s[0], {value})" if exact else f"s[0] += {value}")
            out.line("s[1] += 1")
    elif function in ("min", "max"):
        out.names["nan_less"] = nan_less
        left, right = (value, state) if function == "min" else (state, value)
        special = found.arg.type.family in ("float", "numeric")
        less = f"nan_less({left}, {right})" if special else f"{left} < {right}"
        out.line(f"if {state} is None or {less}: {state} = {value}")
    elif function == "bool_or":
        out.line(f"{state} = {value} if {state} is None else {state} or {value}")
    else:
        out.line(f"{state} = {value} if {state} is None else {state} and {value}")


def adder(found: Aggregate) -> Any:
    """How two values of the argument's type are added."""
    return numerics.add_numeric


def finish(aggregates: list[Aggregate], state: list[Any]) -> list[Any]:
    """The results. Raises 22003."""
    return [_result(found, value) for found, value in zip(aggregates, state)]


def _result(found: Aggregate, value: Any) -> Any:
    function = found.function
    if found.distinct:
        value = _of_set(found, value)
    if value is None or found.arg is None:
        return value
    kind = found.arg.type
    if function == "sum":
        if found.type is INT8:
            if not -(1 << 63) <= value < 1 << 63:
                raise out_of_range("bigint")
        elif found.type is NUMERIC and kind is not NUMERIC:
            return Decimal(value)
        elif found.type is FLOAT4:
            return numerics.to_float4(value)
        return value
    if function == "avg":
        total, count = value
        if kind.family == "float":
            return total / count
        return numerics.divide_numeric(Decimal(total), Decimal(count))
    return value


_ORDERED: Final = ("min", "max")


def _of_set(found: Aggregate, values: set[Any]) -> Any:
    """A DISTINCT aggregate's state as that of the plain one."""
    function = found.function
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in _ORDERED:
        best = None
        for value in values:
            less = best is None or (
                nan_less(value, best) if function == "min" else nan_less(best, value)
            )
            best = value if less else best
        return best
    if function in ("sum", "avg"):
        numeric = found.arg is not None and found.arg.type is NUMERIC
        total: Any = Decimal(0) if numeric else 0
        for value in values:
            total = numerics.add_numeric(total, value) if numeric else total + value
        return total if function == "sum" else [total, len(values)]
    return any(values) if function == "bool_or" else all(values)
