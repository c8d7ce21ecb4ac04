"""From text to plans, and the cache of them.

    prepare(text, parameter types)      extended protocol: cached by text
    prepare_simple(text)                simple protocol: exact text, then its shape (`shapes`)

A plan is made for one version of the catalog. When that has changed the same text is planned again,
the next time it is asked for. A transaction that did DDL sees its own catalog, and its plans are
kept in the session.

One planner per node, shared by its sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import bulk_insert, ddl, prelude, shapes, system
from compute.sql.access import Access
from compute.sql.alter import plan_alter
from compute.sql.alter_more import plan_alter_more
from compute.sql.analytics import engine as analytics
from compute.sql.analytics.change import by_query, plan_change
from compute.sql.analytics.run import Analytic, AnalyticSource, plan_analytic
from compute.sql.analytics.views import columns_of
from compute.sql.binder import Parameters
from compute.sql.catalog import Catalog, Table, load, own_changes
from compute.sql.copy import plan_copy
from compute.sql.copy_out import plan_copy_out
from compute.sql.create_as import plan_create_as
from compute.sql.definitions import UNNAMED
from compute.sql.environment import Environment, current
from compute.sql.explain import AnalyzeBound, planned_with
from compute.sql.expressions import ParamSlot
from compute.sql.index_ddl import plan_create_index
from compute.sql.lock_query import plan_lock_query
from compute.sql.lock_run import LockBound
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.plan import (
    ANY_VERSION,
    LITERAL_FORMAT,
    Bound,
    Params,
    Plan,
    SessionLike,
    command_complete,
)
from compute.sql.referring import References, referring_to
from compute.sql.relation_ddl import plain_identity, plan_relations, read_name
from compute.sql.role_ddl import plan_roles
from compute.sql.rowcode import describe
from compute.sql.select import NotAShape, Output, understand
from compute.sql.select_run import SelectBound, is_fast, is_point
from compute.sql.shapes import Shape
from compute.sql.syntax import (
    PARAM,
    STRING,
    WORD,
    Token,
    check_length,
    check_tokens,
    near,
    parse,
    scan,
    split,
    string_value,
    too_deep,
)
from compute.sql.type_ddl import plan_types
from compute.sql.types import UNKNOWN, type_by_oid
from compute.sql.utility import Reader, plan_utility, text_column, text_row
from compute.sql.wrapped import plan_wrapped
from compute.sql.write import (
    Insert,
    Update,
    understand_delete,
    understand_insert,
    understand_update,
)
from compute.sql.write_run import INLINE_ROWS_MAX, InsertBound, RowIds, UpdateBound
from polarless.errors import CallerMistake, PolarlessError

if TYPE_CHECKING:
    from compute.txn.engine import Engine

PLANS_MAX: Final = 2000
PLAN_TEXT_BYTES_MAX: Final = 8 * 1024 * 1024
OWN_PLANS_MAX: Final = 200
# Of environments that have planners of their own.
OTHERS_MAX: Final = 32


class Cache:
    """A dict with a bound in entries and in characters, in two generations: what was not asked for
    while one generation filled up is forgotten. A hit in the younger one costs a look-up, no more.
    """

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "old", "young")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.young: dict[Any, Any] = {}
        self.old: dict[Any, Any] = {}
        self._bytes = 0
        self._count_max = count_max // 2
        self._bytes_max = bytes_max // 2

    def get(self, key: Any, size: int) -> Any:
        """The entry, or None."""
        found = self.young.get(key)
        if found is None:
            found = self.old.get(key)
            if found is not None:
                self.put(key, found, size)
        return found

    def put(self, key: Any, value: Any, size: int) -> None:
        """Remember an entry of so many characters."""
        if len(self.young) >= self._count_max or self._bytes + size > self._bytes_max:
            self.old, self.young, self._bytes = self.young, {}, 0
        self.young[key] = value
        self._bytes += size

    def __len__(self) -> int:
        return len(self.young) + len(self.old)


class _Refused:
    """In the cache of shapes: planning this one failed at that version of the catalog."""

    __slots__ = ("version",)

    def __init__(self, version: int) -> None:
        self.version = version


class OwnCatalog:
    """The catalog as a transaction with DDL sees it, and the plans made with it."""

    __slots__ = ("catalog", "changes", "plans", "version")

    def __init__(self, catalog: Catalog, changes: dict[Any, Any], version: int) -> None:
        self.catalog = catalog
        self.changes = changes
        self.version = version
        self.plans: dict[Any, Plan] = {}


class Planner:
    """See the module's docstring."""

    def __init__(self, engine: Engine, random: Callable[[int], bytes] | None = None) -> None:
        self.engine = engine
        # Unpredictable bytes, for the salt of passwords.
        self._random = random
        self.row_ids = RowIds()
        self.duckdb = analytics.Engine()
        self._catalog: Catalog | None = None
        self._catalog_version = -2
        self._plans = Cache(PLANS_MAX, PLAN_TEXT_BYTES_MAX)
        self._shapes = Cache(PLANS_MAX, PLAN_TEXT_BYTES_MAX)
        self._exact = Cache(PLANS_MAX, PLAN_TEXT_BYTES_MAX)
        # Planners for sessions whose settings are not the usual ones.
        self._others: dict[Environment, Planner] = {}
        self._environment: Environment | None = None

    def random(self, count: int) -> bytes:
        """So many unpredictable bytes."""
        assert self._random is not None, "a planner without a source of chance"
        return self._random(count)

    def _for(self, environment: Environment) -> Planner:
        """The planner whose plans are made under an environment."""
        found = self._others.get(environment)
        if found is None:
            if len(self._others) >= OTHERS_MAX:
                self._others.clear()
            found = self._others[environment] = copy(self)
            found._environment = environment
            found._forget_plans()
        return found

    def _forget_plans(self) -> None:
        self._plans, self._shapes, self._exact = (
            Cache(PLANS_MAX // 4, PLAN_TEXT_BYTES_MAX // 4) for _ in range(3)
        )

    # The catalog.

    def catalog(self, session: SessionLike) -> Catalog:
        """The catalog as the session sees it. May raise a `Suspend`."""
        own = self._own(session)
        if own is not None:
            current.types = own.catalog.types
            return own.catalog
        version = self.engine.catalog_version
        if self._catalog is None or self._catalog_version != version:
            self._catalog = load(self.engine)
            self._catalog_version = version
        current.types = self._catalog.types
        return self._catalog

    def _own(self, session: SessionLike) -> OwnCatalog | None:
        changes = own_changes(session.txn)
        if not changes:
            if session.sql.catalog is not None:
                session.sql.catalog = None
            return None
        version = self.engine.catalog_version
        found: OwnCatalog | None = session.sql.catalog
        if found is None or found.version != version or found.changes != changes:
            catalog = load(self.engine, changes)
            found = session.sql.catalog = OwnCatalog(catalog, dict(changes), version)
        return found

    def rolled_back(self, session: SessionLike) -> None:
        """The session went back to a savepoint: plans made with what is undone are void."""
        if session.sql.catalog is not None:
            session.sql.catalog = None
            self.engine.catalog_changed()

    # Extended protocol.

    def prepare(self, session: SessionLike, text: str, param_oids: Sequence[int] = ()) -> Plan:
        """The plan of one statement. May raise a `Suspend`, or what is wrong with the text."""
        environment = session.settings.environment
        if environment is not None and self._environment is None:
            return self._for(environment).prepare(session, text, param_oids)
        key: Any = (text, tuple(param_oids)) if param_oids else text
        own = self._own(session)
        if own is not None:
            plan = own.plans.get(key)
            if plan is None:
                if len(own.plans) >= OWN_PLANS_MAX:
                    own.plans.clear()
                plan = own.plans[key] = self._plan(session, text, tuple(param_oids))
            return plan
        found: Plan | None = self._plans.get(key, len(text))
        if found is not None and found.catalog_version in (
            ANY_VERSION,
            self.engine.catalog_version,
        ):
            return found
        found = self._plan(session, text, tuple(param_oids))
        if not current.volatile:
            self._plans.put(key, found, len(text))
        return found

    def split(self, text: str) -> list[str]:
        """The statements of a script, without the empty ones."""
        return [text[tokens[0].start : tokens[-1].end] for _, tokens in split(text, scan(text))]

    # Simple protocol.

    def prepare_simple(self, session: SessionLike, text: str) -> tuple[Bound, Params]:
        """The plan of one statement, bound to text formats, and its literals' values.

        May raise a `Suspend`, or what is wrong with the text.
        """
        state = session.sql
        version = self.engine.catalog_version
        environment = session.settings.environment
        if environment is not state.environment:
            # What followed was planned under other settings.
            state.environment, state.predicted = environment, None
        if environment is not None and self._environment is None:
            return self._for(environment).prepare_simple(session, text)
        last: Shape | None = state.predicted
        if last is not None:
            shape = last.following
            if shape is not None and (shape.version == version or shape.version == ANY_VERSION):
                if shape.match is None:
                    if shape.text == text:
                        state.predicted = shape
                        return shape.bound, ()
                else:
                    found = shape.match(text)
                    if found is not None:
                        state.predicted = shape
                        return shape.bound, found.groups()
        shape, values = self._shape(session, text, version)
        if shape.version in (version, ANY_VERSION):
            if last is not None:
                last.following = shape
            state.predicted = shape
        return shape.bound, values

    def _shape(self, session: SessionLike, text: str, version: int) -> tuple[Shape, Params]:
        check_length(text)
        usable = (ANY_VERSION, version)
        own = own_changes(session.txn)
        if not own:
            exact: Shape | None = self._exact.get(text, len(text))
            if exact is not None and exact.version in usable:
                return exact, ()
            bulk = bulk_insert.recognise(text)
            if bulk is not None:
                return self._bulk(session, bulk, version), (text, bulk.start)
            found = shapes.cut(text)
            if found is not None:
                shape = self._shapes.get(found.key, len(found.key[0]))
                if type(shape) is Shape and shape.version in usable:
                    return shape, found.values
                if type(shape) is not _Refused or shape.version != version:
                    made = self._new_shape(session, found, version)
                    self._shapes.put(found.key, made or _Refused(version), len(found.key[0]))
                    if made is not None:
                        return made, found.values
        else:
            bulk = bulk_insert.recognise(text)
            if bulk is not None:
                shape = self._bulk(session, bulk, version)
                shape.version = -2
                return shape, (text, bulk.start)
        plan = self.prepare(session, text)
        once = bool(own) or current.volatile
        if plan.parameter_oids:
            raise CallerMistake("there is no parameter $1", sqlstate="42P02")
        # What was planned with a transaction's own catalog is good for nobody else.
        shape = Shape(plan.bind(), -2 if once else plan.catalog_version, text, None)
        if not once:
            self._exact.put(text, shape, len(text))
        return shape, ()

    def _new_shape(self, session: SessionLike, found: shapes.Cut, version: int) -> Shape | None:
        """A shape from a text cut at its literals; None if it has to be planned as written."""
        text = shapes.template(found)
        if text is None:
            return None
        current.now_us, current.volatile = session.now_us, False
        try:
            check_tokens(text, scan(text))
            plan = self._plan_tree(session, text, Parameters(types=shapes.parameter_types(found)))
        except PolarlessError:
            # Perhaps only as a shape; the text as written tells.
            return None
        if len(plan.parameter_oids) != len(found.values):
            return None
        bound = plan.bind((LITERAL_FORMAT,) * len(found.values))
        return Shape(bound, plan.catalog_version, None, shapes.matcher(found))

    def _bulk(self, session: SessionLike, found: bulk_insert.BulkText, version: int) -> Shape:
        key = (found.head, found.width)
        own = own_changes(session.txn)
        shape: Shape | None = None if own else self._shapes.get(key, len(found.head))
        if shape is not None and shape.version == version:
            return shape
        plan = Plan("write", catalog_version=version, writes=True, fast=True, verb="INSERT")
        table, slots, insert = self._one_row(session, found, plan)
        bound = bulk_insert.BulkInsertBound(plan, table, slots, insert)
        shape = Shape(bound, version, found.text[:0], None)
        if not own:
            self._shapes.put(key, shape, len(found.head))
        return shape

    def _one_row(
        self, session: SessionLike, found: bulk_insert.BulkText, plan: Plan
    ) -> tuple[Table, list[ParamSlot], Callable[..., int]]:
        """The table, a slot for each item of a row, and the function that inserts one row."""
        text = bulk_insert.template(found)
        parameters = Parameters()
        catalog = self.catalog(session)
        insert = understand_insert(parse(text), catalog, parameters, text, _no_query)
        parameters.settle()
        maker = InsertBound(plan, insert, self.row_ids, parameters.slots, (), (), one_row=True)
        return insert.table, parameters.slots, maker.row_function

    def _many_rows(
        self, session: SessionLike, found: bulk_insert.BulkText, oids: tuple[int, ...]
    ) -> Plan | None:
        """INSERT of many rows of parameters; None if they do not fit their columns as they are."""
        version = self.engine.catalog_version
        plan = Plan("write", catalog_version=version, writes=True, fast=True, verb="INSERT")
        table, slots, insert = self._one_row(session, found, plan)
        declared = tuple(type_by_oid(oid) if oid else None for oid in oids)
        places = bulk_insert.places(found, slots, declared)
        if places is None:
            return None
        plan.parameter_oids = tuple(kind.oid for kind in places.types)
        plan.binder = lambda plan, params, results: bulk_insert.PlacesBound(
            plan, table, places, params, insert
        )
        return plan

    # Planning.

    def _plan(self, session: SessionLike, text: str, oids: tuple[int, ...]) -> Plan:
        check_length(text)
        current.now_us, current.volatile = session.now_us, False
        many = bulk_insert.recognise_parameters(text)
        if many is not None:
            found = self._many_rows(session, many, oids)
            if found is not None:
                return found
        # What the names of types mean.
        self.catalog(session)
        tokens = scan(text)
        statements = split(text, tokens)
        if len(statements) > 1:
            raise SyntaxMistake("cannot insert multiple commands into a prepared statement")
        if not statements:
            return Plan("empty")
        own = statements[0][1]
        check_tokens(text, own)
        if [token.value for token in own[:1]] == ["create"]:
            self._check_view(session, text, own)
        plan = (
            plan_wrapped(text, own)
            or plan_roles(own, self.catalog, self._random)
            or plan_relations(text, own)
            or plan_types(own)
            or plan_alter_more(own)
            or plan_utility(own)
        )
        if plan is not None:
            return plan
        plan = system.plan_system(text, self.catalog)
        if plan is not None:
            return plan
        word = own[0].value
        if word == "copy":
            out = plan_copy_out(text, own, lambda: self.catalog(session))
            if out is not None:
                return out
            version = self.engine.catalog_version
            return plan_copy(text, own, self.catalog(session), self.row_ids, version)
        if word == "explain":
            return self._explain(session, text, own, oids)
        if own[0].value not in _PARSED and own[0].value != "(":
            raise near(own[0])
        if word in ("create", "alter") and any(token.value == "identity" for token in own):
            text = plain_identity(text[: own[-1].end], own)
            own = scan(text)
        # Only what the statement is: positions in errors count from the text's beginning.
        text = _for_sqlglot(text[: own[-1].end], own)
        return self._plan_tree(session, text, Parameters(oids), own)

    def _plan_tree(
        self,
        session: SessionLike,
        text: str,
        parameters: Parameters,
        tokens: list[Token] | None = None,
    ) -> Plan:
        try:
            tree: Any = parse(text)
            while isinstance(tree, (exp.Subquery, exp.Paren)):
                tree = tree.this
            maker = _MAKERS.get(type(tree))
            if maker is None:
                raise _refuse(tree, tokens)
            if isinstance(tree, (exp.Query, exp.Insert, exp.Update, exp.Delete)) and prelude.wanted(
                tree
            ):
                if parameters.literals:
                    raise NotAShape("a statement with parts")
                oids = tuple(
                    0 if slot.type is UNKNOWN else slot.type.oid for slot in parameters.slots
                )
                return prelude.plan_prelude(self, session, tree, oids)
            return maker(self, session, tree, parameters, text)
        except RecursionError:
            raise too_deep() from None

    def _select(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        if tree.args.get("into"):
            return self._into(session, tree)
        catalog = self.catalog(session)
        types = tuple(slot.type for slot in parameters.slots)
        try:
            found = understand(tree, catalog, parameters, text)
        except CallerMistake as error:
            if isinstance(error, NotAShape):
                raise
            fresh = Parameters(types=types)
            fresh.literals = parameters.literals
            try:
                return self._query(session, tree, fresh, text)
            except CallerMistake as second:
                # It is worth hearing of another reason only.
                raise (error if second.sqlstate == error.sqlstate else second) from None
        if found.lock:
            return Plan(
                "query",
                parameters.settle(),
                tuple(describe(output.name, output.node) for output in found.outputs),
                self.engine.catalog_version,
                writes=True,
                fast=is_point(found),
                verb="SELECT FOR UPDATE",
                binder=lambda plan, params, results: LockBound(
                    plan, found, parameters.slots, params, results
                ),
            )
        return Plan(
            "query",
            parameters.settle(),
            tuple(describe(output.name, output.node) for output in found.outputs),
            ANY_VERSION if found.access is None else self.engine.catalog_version,
            fast=is_fast(found),
            verb="SELECT",
            binder=lambda plan, params, results: SelectBound(
                plan, found, parameters.slots, params, results
            ),
        )

    def _query(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        """Joins, subqueries, ...: what DuckDB runs for us."""
        if parameters.literals:
            # Literals stay in the text, where their values decide about numerics' digits.
            raise NotAShape("an analytic query")
        catalog, version = self.catalog(session), self.engine.catalog_version
        if isinstance(tree, exp.Select) and tree.args.get("locks"):
            return plan_lock_query(self, session, tree, catalog, parameters, text)
        return plan_analytic(self.duckdb, tree, catalog, parameters, text, version)

    def _check_view(self, session: SessionLike, text: str, tokens: list[Token]) -> None:
        """CREATE VIEW: its query means something, and replaces only what it may replace."""
        reader = Reader(tokens)
        reader.expect("create")
        replaces = reader.accept("or", "replace")
        if not (reader.accept("temporary") or reader.accept("temp")):
            reader.accept("recursive")
        if not reader.accept("view"):
            return
        reader.accept("if", "not", "exists")
        name = read_name(reader)
        names: list[str] = []
        if reader.accept("("):
            names.append(reader.name())
            while reader.accept(","):
                names.append(reader.name())
            reader.expect(")")
        if not reader.accept("as") or reader.peek is None:
            return
        found = self.prepare(session, text[reader.peek.start : tokens[-1].end]).columns
        labels = [*names, *(column.name for column in found[len(names) :])]
        for label in labels:
            if labels.count(label) > 1:
                raise CallerMistake(f'column "{label}" specified more than once', sqlstate="42701")
        catalog = self.catalog(session)
        view = catalog.view(name.name, name.schema) if replaces else None
        if view is not None:
            _check_replaced(columns_of(catalog, view), labels, found)

    def _into(self, session: SessionLike, tree: Any) -> Plan:
        """SELECT ... INTO table: CREATE TABLE AS under another name."""
        into, query = tree.args["into"], tree.copy()
        query.set("into", None)
        made = exp.Create(this=into.this.copy(), kind="TABLE", expression=query)
        if into.args.get("temporary"):
            made.set("properties", exp.Properties(expressions=[exp.TemporaryProperty()]))
        return plan_create_as(self, made)

    def _insert(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        catalog = self.catalog(session)

        def source_of(query: Any) -> AnalyticSource:
            if parameters.literals:
                raise NotAShape("an analytic query")
            return AnalyticSource(Analytic(self.duckdb, query, catalog, parameters, text))

        found: Insert = understand_insert(tree, catalog, parameters, text, source_of)
        row_ids = self.row_ids
        return self._write(
            parameters,
            found.returning,
            "INSERT",
            lambda plan, params, results: InsertBound(
                plan, found, row_ids, parameters.slots, params, results
            ),
            fast=found.query is None and len(found.rows) <= INLINE_ROWS_MAX,
        )

    def _update(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        return self._own_or_by_query(session, tree, parameters, text, understand_update, "UPDATE")

    def _delete(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        return self._own_or_by_query(session, tree, parameters, text, understand_delete, "DELETE")

    def _own_or_by_query(
        self,
        session: SessionLike,
        tree: Any,
        parameters: Parameters,
        text: str,
        understand_it: Callable[..., Update],
        verb: str,
    ) -> Plan:
        """By our own executor if it can; else a query finds the rows and the new values."""
        catalog = self.catalog(session)
        types = tuple(slot.type for slot in parameters.slots)
        try:
            found = understand_it(tree, catalog, parameters, text)
            return self._change(found, catalog, parameters, verb)
        except CallerMistake as error:
            if isinstance(error, NotAShape) or not by_query(tree):
                raise
            if parameters.literals:
                raise NotAShape("a change by a query") from None
            try:
                return plan_change(self, session, tree, catalog, Parameters(types=types), text)
            except CallerMistake as second:
                raise (error if second.sqlstate == error.sqlstate else second) from None

    def _change(self, found: Update, catalog: Catalog, parameters: Parameters, verb: str) -> Plan:
        table = found.access.table
        columns = None if found.assignments is None else {index for index, _ in found.assignments}
        referring = referring_to(table, catalog, columns)
        if referring:
            found.after = References(self, table, referring)
        return self._write(
            parameters,
            found.returning,
            verb,
            lambda plan, params, results: UpdateBound(
                plan, found, parameters.slots, params, results
            ),
            fast=bool(found.access.point) and not found.changes_key and not referring,
        )

    def _write(
        self,
        parameters: Parameters,
        returning: list[Output] | None,
        verb: str,
        binder: Callable[[Plan, tuple[int, ...], tuple[int, ...]], Bound],
        *,
        fast: bool,
    ) -> Plan:
        return Plan(
            "write",
            parameters.settle(),
            tuple(describe(output.name, output.node) for output in returning or ()),
            self.engine.catalog_version,
            writes=True,
            fast=fast,
            verb=verb,
            binder=binder,
        )

    def _create(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        if str(tree.args.get("kind") or "").upper() == "INDEX":
            return plan_create_index(tree)
        if str(tree.args.get("kind") or "").upper() == "TABLE" and tree.expression is not None:
            return plan_create_as(self, tree)
        return ddl.plan_create(tree)

    def _drop(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        return ddl.plan_drop(tree)

    def _truncate(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        return ddl.plan_truncate(tree)

    def _alter(self, session: SessionLike, tree: Any, parameters: Parameters, text: str) -> Plan:
        return plan_alter(tree)

    def _explain(
        self, session: SessionLike, text: str, tokens: list[Token], oids: tuple[int, ...]
    ) -> Plan:
        """EXPLAIN [ANALYZE]: the access path; what comes with it is in `explain`."""
        reader = Reader(tokens)
        reader.expect("explain")
        analyze = False
        if reader.accept("("):
            while not reader.accept(")"):
                analyze |= reader.next().value in ("analyze", "analyse")
        while True:
            if reader.accept("analyze") or reader.accept("analyse"):
                analyze = True
            elif not reader.accept("verbose"):
                break
        rest = reader.next()
        inner = parse(text[rest.start : tokens[-1].end])
        parameters = Parameters(oids)
        catalog = self.catalog(session)
        lines: list[str] = []
        access: Access | None = None
        if isinstance(inner, exp.Query):
            lines, access = self._explain_query(inner, catalog, oids, text[rest.start :])
        elif isinstance(inner, exp.Update):
            access = understand_update(inner, catalog, parameters, text[rest.start :]).access
        elif isinstance(inner, exp.Delete):
            access = understand_delete(inner, catalog, parameters, text[rest.start :]).access
        elif not isinstance(inner, exp.Insert):
            raise near(rest)
        lines = lines or ["Result" if access is None else access.describe()]
        if isinstance(inner, exp.Insert):
            target = inner.find(exp.Table)
            lines = [f"Insert on {target.name if target is not None else '?'}"]
        if analyze:
            make = planned_with(self, text[rest.start : tokens[-1].end], oids)
            return Plan(
                "query",
                parameters.settle(),
                (text_column("QUERY PLAN"),),
                self.engine.catalog_version,
                writes=not isinstance(inner, exp.Query),
                verb="EXPLAIN",
                binder=lambda plan, params, results: AnalyzeBound(
                    plan, results, params, lines, make
                ),
            )

        def run(session: SessionLike, params: Params) -> bytes:
            return b"".join(map(text_row, lines)) + command_complete("EXPLAIN")

        return Plan(
            "query",
            parameters.settle(),
            (text_column("QUERY PLAN"),),
            self.engine.catalog_version,
            fast=True,
            verb="EXPLAIN",
            binder=lambda plan, params, results: Bound(plan, results, run),
        )

    def _explain_query(
        self, tree: Any, catalog: Catalog, oids: tuple[int, ...], text: str
    ) -> tuple[list[str], Access | None]:
        """The lines of a query that DuckDB runs, or how our own executor reaches its rows."""
        try:
            return [], understand(tree, catalog, Parameters(oids), text).access
        except CallerMistake:
            analytic = Analytic(self.duckdb, tree, catalog, Parameters(oids), text)
            analytic.settle()
            scans = analytic.statement.scans
            return ["DuckDB", *(f"  ->  {scan.describe()}" for scan in scans)], None


def _check_replaced(old: Any, labels: list[str], found: Sequence[Any]) -> None:
    if len(labels) < len(old):
        raise CallerMistake("cannot drop columns from view", sqlstate="42P16")
    for (name, kind, *_), label, column in zip(old, labels, found):
        if name != label:
            raise CallerMistake(
                f'cannot change name of view column "{name}" to "{label}"', sqlstate="42P16"
            )
        if kind.oid != column.oid:
            raise CallerMistake(
                f'cannot change data type of view column "{name}"', sqlstate="42P16"
            )


def _no_query(tree: Any) -> Any:
    """Rows of parameters are no query."""
    raise not_supported("a query here")


_PARSED: Final = frozenset(
    {"select", "insert", "update", "delete", "values", "table", "with", "create", "drop",
     "alter", "truncate"}
)  # fmt: skip
Maker = Callable[[Planner, SessionLike, Any, Parameters, str], Plan]
_MAKERS: Final[dict[type, Maker]] = {
    exp.Select: Planner._select,
    exp.Union: Planner._query,
    exp.Except: Planner._query,
    exp.Intersect: Planner._query,
    exp.Values: Planner._query,
    exp.Insert: Planner._insert,
    exp.Update: Planner._update,
    exp.Delete: Planner._delete,
    exp.Create: Planner._create,
    exp.Drop: Planner._drop,
    exp.TruncateTable: Planner._truncate,
    exp.Alter: Planner._alter,
}


def _for_sqlglot(text: str, tokens: list[Token]) -> str:
    """The text without what sqlglot reads differently: LIMIT ALL, which means nothing, strings with
    escapes or in dollars, which it takes for other things, ``$1,$2``, which begins a dollar quote
    for it, and ``oid[]``.
    """
    parts: list[str] = []
    position = 0
    for index, token in enumerate(tokens):
        if (
            token.kind == STRING
            and index
            and tokens[index - 1].value == "interval"
            and tokens[index - 1].kind == WORD
            and position <= tokens[index - 1].start
            and not any(t.value in _INTERVAL_FIELDS for t in tokens[index + 1 : index + 2])
        ):
            # It would take the text apart by rules of its own.
            value = string_value(token).replace("'", "''")
            begin = tokens[index - 1].start
            parts += (text[position:begin], f"CAST('{value}' AS interval)")
            position = token.end
        elif token.kind == STRING and index and tokens[index - 1].kind == STRING:
            # Two literals are one if a line ends between them.
            if "\n" not in text[tokens[index - 1].end : token.start]:
                raise near(token)
            joined = parts[-1] if parts and position == tokens[index - 1].end else None
            first = joined or text[position : tokens[index - 1].end]
            head = parts[:-1] if joined else parts
            value = string_value(token).replace("'", "''")
            parts = [*head, first[:-1] + value + "'"]
            position = token.end
        elif (
            token.kind == STRING
            and [t.value for t in tokens[index + 1 : index + 2]] == ["::"]
            and (typed := _typed_from(tokens, index)) is not None
        ):
            # DATE '...'::text is (DATE '...')::text, and not DATE ('...'::text).
            begin = tokens[typed].start
            value = string_value(token).replace("'", "''")
            done = "".join((*parts, text[position:begin])) if position <= begin else None
            if done is not None:
                parts = [done, "(", text[begin : token.start], f"'{value}')"]
                position = token.end
        elif token.kind == STRING and text[token.start] != "'":
            value = string_value(token).replace("'", "''")
            parts += (text[position : token.start], f"'{value}'")
            position = token.end
        elif token.kind == PARAM:
            parts.append(text[position : token.end] + " ")
            position = token.end
        elif token.value == "oid" and [t.value for t in tokens[index + 1 : index + 3]] == [
            "[",
            "]",
        ]:
            # sqlglot takes the brackets for a subscript; this is the array's other name.
            parts += (text[position : token.start], "_oid")
            position = tokens[index + 2].end
        elif token.value == "check" and index and tokens[index - 1].value == "add":
            # ALTER TABLE ... ADD CHECK: it wants a name; `definitions` takes this one for none.
            parts += (text[position : token.start], f'CONSTRAINT "{UNNAMED}" check')
            position = token.end
        elif (
            token.value == "rename"
            and tokens[0].value == "alter"
            and [t.value for t in tokens[index + 2 : index + 3]] == ["to"]
            and tokens[index + 1].value != "column"
        ):
            # It would take the column's name for the table's.
            parts += (text[position : token.end], " column")
            position = token.end
        elif token.value == "overriding" and [t.value for t in tokens[index + 2 : index + 3]] == [
            "value"
        ]:
            # `understand_insert` looks for the comment.
            end = tokens[index + 2].end
            parts += (text[position : token.start], f"/*{text[token.start : end].lower()}*/")
            position = end
        elif token.value == "all" and index and tokens[index - 1].value == "limit":
            parts.append(text[position : tokens[index - 1].start])
            position = token.end
    return "".join((*parts, text[position:])) if parts else text


_INTERVAL_FIELDS: Final = frozenset({"year", "month", "day", "hour", "minute", "second"})
_LITERAL_TYPES: Final = frozenset(
    {"date", "timestamp", "timestamptz", "time", "interval", "numeric", "text", "uuid", "json",
     "jsonb", "bytea", "boolean", "bool", "decimal", "varchar", "name"}
)  # fmt: skip


def _typed_from(tokens: list[Token], index: int) -> int | None:
    """Where the type before a string literal begins; None if none stands there."""
    before = tokens[max(index - 4, 0) : index]
    words = [token.value for token in before]
    if words[-2:] == ["time", "zone"] and len(words) == 4 and words[0] in ("timestamp", "time"):
        return index - 4
    typed = words[-1:] and before[-1].kind == WORD and words[-1] in _LITERAL_TYPES
    return index - 1 if typed and words[-2:-1] != ["::"] else None


def _refuse(tree: Any, tokens: list[Token] | None) -> PolarlessError:
    if isinstance(tree, exp.SetOperation):
        return not_supported("UNION, INTERSECT or EXCEPT")
    if isinstance(tree, exp.Values):
        return not_supported("VALUES outside of INSERT")
    word = tokens[0].value.upper() if tokens else type(tree).__name__.upper()
    if isinstance(tree, exp.Command) and tokens and len(tokens) > 1:
        word = f"{word} {tokens[1].value.upper()}"
        if word in ("CREATE TABLE", "ALTER TABLE", "DROP TABLE", "TRUNCATE TABLE"):
            # sqlglot gave up on it.
            return SyntaxMistake(f"syntax error in {word}, or a clause that is not supported")
    return not_supported(word, hint=_HINTS.get(word))


_HINTS: Final = {
    "CREATE DOMAIN": "Use its base type, with the CHECK at each column.",
    "CREATE FUNCTION": "Functions are written by the client.",
    "CREATE TRIGGER": "Do what it does in the statement's transaction.",
    "CREATE EXTENSION": "Nothing can be loaded into a node.",
}
