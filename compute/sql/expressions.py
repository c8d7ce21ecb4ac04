"""Typed expressions, and how they become Python source.

The binder makes a tree of these nodes from SQL; `Node.emit` writes the statements that compute one
into an `Emitter` and returns a name (or constant) that holds the value. NULL is None. Only a node
that may be NULL costs a test for it, and a node that may fail (overflow) costs its check, so

    abalance + $1        with abalance integer, nullable

becomes

    t1 = r[2]
    if t1 is None or p0 is None: t2 = None
    else:
        t2 = t1 + p0
        if not -2147483648 <= t2 <= 2147483647: raise out_of_range("integer")

AND, OR, CASE and COALESCE compute what comes later only when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from compute.sql.types import BOOL, NUMERIC, UNKNOWN, SqlType

# Generated code nests by one level per CASE or COALESCE; Python's own limit is 100.
INDENT_MAX: Final = 60


class Emitter:
    """Collects the lines of a generated function. ``names`` are what the code finds outside it."""

    def __init__(self, names: dict[str, Any], *, indent: int = 1) -> None:
        self.lines: list[str] = []
        # Lines that run once, before any row, at the depth of the function's body.
        self.before: list[str] = []
        self.outer = indent
        self.names = names
        self.indent = indent
        self._count = 0
        self._constants: dict[int, str] = {}

    def line(self, text: str) -> None:
        """One statement at the current depth."""
        self.lines.append("    " * self.indent + text)

    def temp(self) -> str:
        """A fresh local name."""
        self._count += 1
        return f"t{self._count}"

    def constant(self, value: Any, prefix: str = "c") -> str:
        """Source for a value: itself if it is simple, else a name bound to it."""
        if value is None or type(value) in (bool, int):
            return f"({value!r})" if type(value) is int and value < 0 else repr(value)
        if type(value) in (str, bytes) and len(value) < 200:
            return repr(value)
        found = self._constants.get(id(value))
        if found is None:
            # The counter is in `names`, since several functions may share them.
            found = f"{prefix}{len(self.names)}_"
            self.names[found] = value
            self._constants[id(value)] = found
        return found

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """``head:`` and what is emitted inside, one level deeper."""
        self.line(head + ":")
        self.indent += 1
        if self.indent > INDENT_MAX:
            raise RecursionError
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1


class Node:
    """An expression of a type. ``pad`` is the width (as a typmod) that a char(n) is printed with:
    PostgreSQL keeps the blanks of a value where it forgets the type's modifier, as in min(c).
    """

    __slots__ = ("nullable", "pad", "type", "typmod")

    def __init__(self, type_: SqlType, typmod: int = -1, *, nullable: bool = True) -> None:
        self.type = type_
        self.typmod = typmod
        self.pad = typmod
        self.nullable = nullable

    def emit(self, out: Emitter) -> str:
        """Write what computes the value; return its source."""
        raise NotImplementedError

    def children(self) -> tuple[Node, ...]:
        """The nodes below."""
        return ()


def walk(node: Node) -> Iterator[Node]:
    """``node`` and all below it."""
    stack = [node]
    while stack:
        found = stack.pop()
        yield found
        stack.extend(found.children())


class Const(Node):
    """A value of the text. An unknown one is a string literal whose type the context decides."""

    __slots__ = ("value",)

    def __init__(self, value: Any, type_: SqlType, typmod: int = -1) -> None:
        super().__init__(type_, typmod, nullable=value is None)
        self.value = value

    def emit(self, out: Emitter) -> str:
        return out.constant(self.value)


class ParamSlot:
    """A parameter's type, once it is known. ``index`` from 0."""

    __slots__ = ("index", "type", "used")

    def __init__(self, index: int, type_: SqlType) -> None:
        self.index = index
        self.type = type_
        self.used = False


class Param(Node):
    """A parameter. Decoded at the top of the generated function into the local ``p<index>``."""

    __slots__ = ("slot",)

    def __init__(self, slot: ParamSlot) -> None:
        super().__init__(slot.type)
        self.slot = slot

    def emit(self, out: Emitter) -> str:
        return f"p{self.slot.index}"


class ColumnRef(Node):
    """A column of the row ``r``."""

    __slots__ = ("index", "name", "table")

    def __init__(
        self, table: str, name: str, index: int, type_: SqlType, typmod: int, *, nullable: bool
    ) -> None:
        super().__init__(type_, typmod, nullable=nullable)
        self.table = table
        self.name = name
        self.index = index

    def emit(self, out: Emitter) -> str:
        source = f"r[{self.index}]"
        if self.type.oid == NUMERIC.array_oid:
            out.names["decimals_"] = _decimals
            result = out.temp()
            out.line(f"{result} = decimals_({source})")
            return result
        if self.type is not NUMERIC:
            return source
        out.names["Decimal_"] = _decimal()
        result = out.temp()
        test = f" if {source} is not None else None" if self.nullable else ""
        out.line(f"{result} = Decimal_({source}){test}")
        return result


def _decimals(items: Any) -> Any:
    """An array of numeric, of the texts that are stored."""
    if items is None or isinstance(items, str):
        return items if items is None else _decimal()(items)
    return [_decimals(item) for item in items]


def _decimal() -> Any:
    from decimal import Decimal

    return Decimal


class Local(Node):
    """A value that the surrounding code has under a name: a group's key, an aggregate's result."""

    __slots__ = ("source",)

    def __init__(self, source: str, type_: SqlType, typmod: int = -1, *, nullable: bool = True):
        super().__init__(type_, typmod, nullable=nullable)
        self.source = source

    def emit(self, out: Emitter) -> str:
        return self.source


class Retyped(Node):
    """The same value under another type: integer as bigint, varchar as text."""

    __slots__ = ("inner",)

    def __init__(self, inner: Node, type_: SqlType, typmod: int = -1) -> None:
        super().__init__(type_, typmod, nullable=inner.nullable)
        self.inner = inner

    def emit(self, out: Emitter) -> str:
        return self.inner.emit(out)

    def children(self) -> tuple[Node, ...]:
        return (self.inner,)


Body = Callable[[Emitter, str, list[str]], None]

# What a body computes, for whoever computes it by other means than Python: a template's source, a
# function, or a tuple that begins with a word.
MEANINGS: Final[WeakKeyDictionary[Body, Any]] = WeakKeyDictionary()


def meaning(body: Body, what: Any) -> Body:
    """``body``, remembered as computing ``what``."""
    MEANINGS[body] = what
    return body


class Strict(Node):
    """An operation that is NULL when an argument is. ``body(out, result, args)`` writes it."""

    __slots__ = ("args", "body")

    def __init__(
        self,
        args: tuple[Node, ...],
        body: Body,
        type_: SqlType,
        typmod: int = -1,
        *,
        nullable: bool | None = None,
    ) -> None:
        known = any(arg.nullable for arg in args) if nullable is None else nullable
        super().__init__(type_, typmod, nullable=known)
        self.args = args
        self.body = body

    def emit(self, out: Emitter) -> str:
        sources = [arg.emit(out) for arg in self.args]
        result = out.temp()
        tests = [f"{s} is None" for s, arg in zip(sources, self.args) if arg.nullable]
        if not tests:
            self.body(out, result, sources)
            return result
        with out.block(f"if {' or '.join(dict.fromkeys(tests))}"):
            out.line(f"{result} = None")
        with out.block("else"):
            self.body(out, result, sources)
        return result

    def children(self) -> tuple[Node, ...]:
        return self.args


def template(source: str, **names: Any) -> Body:
    """A body that assigns one Python expression; ``{0}``, ``{1}`` stand for the arguments."""

    def body(out: Emitter, result: str, args: list[str]) -> None:
        out.names.update(names)
        out.line(f"{result} = {source.format(*args)}")

    return meaning(body, source)


def call(function: Callable[..., Any]) -> Body:
    """A body that calls a Python function."""
    # Two functions of one name may meet in one piece of code.
    word = function.__name__
    name = f"{word if word.isidentifier() else 'f'}_{id(function):x}_f"

    def body(out: Emitter, result: str, args: list[str]) -> None:
        out.names[name] = function
        out.line(f"{result} = {name}({', '.join(args)})")

    return meaning(body, function)


class Junction(Node):
    """AND (``stop`` False) or OR (``stop`` True) of many, left to right."""

    __slots__ = ("parts", "stop")

    def __init__(self, parts: list[Node], *, stop: bool) -> None:
        super().__init__(BOOL, nullable=any(part.nullable for part in parts))
        self.parts = parts
        self.stop = stop

    def emit(self, out: Emitter) -> str:
        # A loop that runs once: `break` leaves it as soon as the answer is known.
        result = out.temp()
        out.line(f"{result} = {not self.stop}")
        with out.block("while True"):
            for part in self.parts:
                source = part.emit(out)
                with out.block(f"if {source} is {self.stop}"):
                    out.line(f"{result} = {self.stop}")
                    out.line("break")
                if part.nullable:
                    with out.block(f"if {source} is None"):
                        out.line(f"{result} = None")
            out.line("break")
        return result

    def children(self) -> tuple[Node, ...]:
        return tuple(self.parts)


class Test(Node):
    """A test of one value that is never NULL itself: IS NULL, IS TRUE, ..."""

    __slots__ = ("inner", "source")

    def __init__(self, inner: Node, source: str) -> None:
        super().__init__(BOOL, nullable=False)
        self.inner = inner
        self.source = source

    def emit(self, out: Emitter) -> str:
        inner = self.inner.emit(out)
        result = out.temp()
        if isinstance(self.inner, Const):
            # Python warns of ``1 is None``.
            out.line(f"{result} = {inner}")
            inner = result
        out.line(f"{result} = {self.source.format(inner)}")
        return result

    def children(self) -> tuple[Node, ...]:
        return (self.inner,)


class Case(Node):
    """CASE WHEN ... THEN ... ELSE ... END, all results of one type."""

    __slots__ = ("arms", "default")

    def __init__(
        self, arms: list[tuple[Node, Node]], default: Node | None, type_: SqlType, typmod: int = -1
    ) -> None:
        nullable = default is None or default.nullable or any(a[1].nullable for a in arms)
        super().__init__(type_, typmod, nullable=nullable)
        self.arms = arms
        self.default = default
        results = [value for _, value in arms]
        self.pad = max(node.pad for node in (results if default is None else [*results, default]))

    def emit(self, out: Emitter) -> str:
        result = out.temp()
        out.line(f"{result} = None")
        with out.block("while True"):
            for condition, value in self.arms:
                test = condition.emit(out)
                with out.block(f"if {test} is True"):
                    out.line(f"{result} = {value.emit(out)}")
                    out.line("break")
            if self.default is not None:
                out.line(f"{result} = {self.default.emit(out)}")
            out.line("break")
        return result

    def children(self) -> tuple[Node, ...]:
        both = tuple(node for arm in self.arms for node in arm)
        return both if self.default is None else (*both, self.default)


class Coalesce(Node):
    """The first argument that is not NULL."""

    __slots__ = ("args",)

    def __init__(self, args: list[Node], type_: SqlType, typmod: int = -1) -> None:
        super().__init__(type_, typmod, nullable=all(arg.nullable for arg in args))
        self.args = args
        self.pad = max(arg.pad for arg in args)

    def emit(self, out: Emitter) -> str:
        result = out.temp()
        with out.block("while True"):
            for arg in self.args:
                out.line(f"{result} = {arg.emit(out)}")
                out.line(f"if {result} is not None: break")
            out.line("break")
        return result

    def children(self) -> tuple[Node, ...]:
        return tuple(self.args)


class InList(Node):
    """``value IN (items)``, the items known before any row: one look-up in a set."""

    __slots__ = ("inner", "items")

    def __init__(self, inner: Node, items: list[Node]) -> None:
        super().__init__(BOOL, nullable=inner.nullable or any(item.nullable for item in items))
        self.inner = inner
        self.items = items

    def emit(self, out: Emitter) -> str:
        values, has_null = emit_set(out, self.items)
        inner = self.inner.emit(out)
        result = out.temp()
        found = f"{inner} in {values}"
        if has_null != "False":
            found = f"True if {found} else (None if {has_null} else False)"
        if self.inner.nullable:
            found = f"None if {inner} is None else ({found})"
        out.line(f"{result} = {found}")
        return result

    def children(self) -> tuple[Node, ...]:
        return (self.inner, *self.items)


def emit_set(out: Emitter, items: list[Node]) -> tuple[str, str]:
    """Source for the set of the items and for whether NULL is among them; made before any row."""
    if all(isinstance(item, Const) for item in items):
        values = {item.value for item in items if isinstance(item, Const)}
        return out.constant(frozenset(values - {None}), "set"), str(None in values)
    name = out.temp()
    before, out.lines = out.lines, out.before
    depth, out.indent = out.indent, out.outer
    sources = [item.emit(out) for item in items]
    out.line(f"{name} = {{{', '.join(sources)}}}")
    out.lines, out.indent = before, depth
    nullable = any(item.nullable for item in items)
    return name, f"None in {name}" if nullable else "False"


class Aggregate(Node):
    """COUNT, SUM, ...: only ever the root of what `select` collects; read through a `Local`."""

    __slots__ = ("arg", "distinct", "function", "index")

    def __init__(
        self, function: str, arg: Node | None, type_: SqlType, *, distinct: bool, index: int
    ) -> None:
        super().__init__(type_, nullable=function != "count")
        if arg is not None and arg.type is type_:
            self.pad = arg.pad
        self.function = function
        self.arg = arg
        self.distinct = distinct
        self.index = index

    def emit(self, out: Emitter) -> str:
        return f"a[{self.index}]"


class SessionCall(Node):
    """A function of the session (now(), current_user): ``body`` gets ``session`` first."""

    __slots__ = ("args", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Node, ...],
        type_: SqlType,
        *,
        nullable: bool = False,
    ) -> None:
        super().__init__(type_, nullable=nullable or any(arg.nullable for arg in args))
        self.function = function
        self.args = args

    def emit(self, out: Emitter) -> str:
        sources = [arg.emit(out) for arg in self.args]
        result = out.temp()
        name = f"{self.function.__name__}_{id(self.function):x}_s"
        out.names[name] = self.function
        tests = [f"{s} is None" for s, arg in zip(sources, self.args) if arg.nullable]
        value = f"{name}({', '.join(('session', *sources))})"
        if tests:
            value = f"None if {' or '.join(tests)} else {value}"
        out.line(f"{result} = {value}")
        return result

    def children(self) -> tuple[Node, ...]:
        return self.args


class NowUs(Node):
    """The transaction's start, the one function worth inlining."""

    __slots__ = ()

    def emit(self, out: Emitter) -> str:
        result = out.temp()
        out.line(f"{result} = session.now_us - 946684800000000")
        return result


def is_constant(node: Node) -> bool:
    """Whether the value is known before any row is read: no column, no aggregate."""
    return not any(isinstance(found, (ColumnRef, Local, Aggregate)) for found in walk(node))


def is_fixed(node: Node) -> bool:
    """Whether it is a constant or parameter, possibly retyped: cheap and sure not to fail."""
    while isinstance(node, Retyped):
        node = node.inner
    return isinstance(node, (Const, Param))


def unknown_null() -> Const:
    """A bare NULL."""
    return Const(None, UNKNOWN)
