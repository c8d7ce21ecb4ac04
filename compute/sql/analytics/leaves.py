"""What an expression stands on in a query for DuckDB, and the functions made of our own code.

A `Leaf` is a piece of DuckDB's SQL with a type of ours: a column, an aggregate, a window, a
subquery. Expressions over leaves that DuckDB would compute otherwise than PostgreSQL are generated
as Python, as for our own executor, with the leaves as arguments: a `Function`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from compute.sql import environment
from compute.sql.analytics.carriers import Carrier, from_value, to_value
from compute.sql.expressions import Emitter, Node, NowUs, Param, SessionCall, walk
from compute.sql.rowcode import base_names, compile_function
from compute.sql.types import SqlType


class Leaf(Node):
    """See the module's docstring. ``origin`` names a column for messages."""

    __slots__ = ("carrier", "sql")

    def __init__(
        self,
        sql: str,
        carrier: Carrier,
        type_: SqlType,
        typmod: int = -1,
        *,
        pad: int | None = None,
    ) -> None:
        super().__init__(type_, typmod)
        self.sql = sql
        self.carrier = carrier
        if pad is not None:
            self.pad = pad

    def emit(self, out: Emitter) -> str:
        assert isinstance(out, LeafEmitter), "a leaf has no value outside of DuckDB"
        return out.leaf(self)


class LeafEmitter(Emitter):
    """Emits a function of leaves and parameters."""

    def __init__(self) -> None:
        super().__init__(base_names())
        self.names["session"] = current
        self.arguments: dict[str, tuple[str, Leaf]] = {}

    def leaf(self, leaf: Leaf) -> str:
        """The argument that holds a leaf's value."""
        found = self.arguments.get(leaf.sql)
        if found is None:
            found = self.arguments[leaf.sql] = (f"a{len(self.arguments)}", leaf)
        return found[0]


class Function(NamedTuple):
    """A Python function for DuckDB. ``takes`` and ``gives`` are names of DuckDB's types."""

    name: str
    python: Callable[..., Any]
    takes: tuple[str, ...]
    gives: str


class Current(threading.local):
    """What the functions of the statement at hand need, in the thread that runs it."""

    session: Any = None
    error: BaseException | None = None
    catalog: Any = None
    # `compute.sql.roles.Access`.
    access: Any = None

    def set(self, session: Any, catalog: Any, access: Any) -> None:
        """A statement begins here."""
        self.session, self.catalog, self.access = session, catalog, access
        self.error = None
        environment.current.environment = session.settings.environment or environment.USUAL

    def clear(self) -> None:
        """It ends, or waits."""
        self.session = self.catalog = self.access = None
        environment.current.environment = environment.USUAL

    def __getattr__(self, name: str) -> Any:
        # Generated code says ``session.now_us``; this object stands in for the session.
        return getattr(self.session, name)


current: Final = Current()


def is_constant(node: Node) -> bool:
    """Whether the value is the same for all rows."""
    return not any(isinstance(found, Leaf) for found in walk(node))


def is_fixed(node: Node) -> bool:
    """Whether the value is the same for all runs."""
    return not any(isinstance(found, (Leaf, Param, SessionCall, NowUs)) for found in walk(node))


def evaluate(node: Node) -> Any:
    """The value of a node that `is_fixed`. Raises what computing it raises."""
    out = Emitter(base_names())
    result = node.emit(out)
    out.line(f"return {result}")
    return compile_function("value", "", out)()


def make_function(
    name: str, node: Node, carrier: Carrier, parameters: dict[int, Carrier]
) -> tuple[Function, list[Leaf]]:
    """A function that computes ``node``; its arguments are the leaves, then ``parameters``."""
    out = LeafEmitter()
    result = node.emit(out)
    converter = from_value(carrier)
    if converter is not None:
        out.names["give_"] = converter
        out.line(f"return None if ({result}) is None else give_({result})")
    else:
        out.line(f"return {result}")
    leaves = [leaf for _, leaf in out.arguments.values()]
    names = [argument for argument, _ in out.arguments.values()]
    takes = [leaf.carrier for leaf in leaves]
    for index, kind in parameters.items():
        names.append(f"p{index}")
        takes.append(kind)
    before: list[str] = []
    for position, (argument, kind) in enumerate(zip(names, takes)):
        reader = to_value(kind)
        if reader is not None:
            out.names[f"take{position}_"] = reader
            before.append(
                f"    {argument} = None if {argument} is None else take{position}_({argument})"
            )
    out.before = before + out.before
    function = compile_function("computed", ", ".join(names), out)
    return Function(
        name, guarded(function, len(takes)), tuple(c.sql for c in takes), carrier.sql
    ), leaves


def guarded(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Keeps what the function raises: DuckDB would pass on its text only.

    DuckDB looks at the signature, so it has to have exactly ``count`` parameters.
    """
    out = Emitter({"function": function, "current": current})
    names = ", ".join(f"a{index}" for index in range(count))
    with out.block("try"):
        out.line(f"return function({names})")
    with out.block("except BaseException as error"):
        out.line("current.error = error")
        out.line("raise")
    return compile_function("call", names, out)
