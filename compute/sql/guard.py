"""What a session of a restricted role may do: a planner that looks before it plans.

Only sessions of roles that are no superusers have one; for all others nothing is added. A statement
is allowed or not as a text, at one version of the catalog.

The tables of a statement are all names in it that a table has, also where the name might be that of
a WITH query: who calls a WITH query like a table that he may not read is refused more than need be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import bulk_insert
from compute.sql.catalog import PG_CATALOG, PUBLIC
from compute.sql.plan import Bound, Params, Plan, SessionLike
from compute.sql.planner import _for_sqlglot as for_sqlglot
from compute.sql.syntax import WORD, Token, identifier, parse, scan, split
from compute.sql.utility import Reader
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.planner import Planner
    from compute.sql.roles import AccessCache

_TEXTS_MAX: Final = 500
_QUERIES: Final = frozenset(
    {"select", "with", "values", "table", "insert", "update", "delete", "(", "explain"}
)
# These change or tell what is not granted to anybody.
_SUPERUSERS: Final = frozenset(
    {
        *("create", "alter", "drop", "truncate", "grant", "revoke", "comment", "vacuum"),
        *("reindex", "cluster", "checkpoint", "refresh", "do", "call", "merge", "lock"),
        *("analyze", "analyse", "import", "security", "reassign"),
    }
)


class GuardedPlanner:
    """The planner of one session; see the module's docstring."""

    def __init__(self, planner: Any, access: Any, user: str) -> None:
        self._planner: Planner = planner
        self._access: AccessCache = access
        self._user = user
        self._allowed: set[str] = set()
        self._version = -2

    def prepare(self, session: SessionLike, text: str, param_oids: Sequence[int] = ()) -> Plan:
        """See `Planner.prepare`. Raises 42501."""
        self._check(session, text)
        return self._planner.prepare(session, text, param_oids)

    def prepare_simple(self, session: SessionLike, text: str) -> tuple[Bound, Params]:
        """See `Planner.prepare_simple`. Raises 42501."""
        self._check(session, text)
        return self._planner.prepare_simple(session, text)

    def split(self, text: str) -> list[str]:
        """See `Planner.split`."""
        return self._planner.split(text)

    def random(self, count: int) -> bytes:
        """See `Planner.random`."""
        return self._planner.random(count)

    def rolled_back(self, session: SessionLike) -> None:
        """See `Planner.rolled_back`."""
        self._planner.rolled_back(session)

    def _check(self, session: SessionLike, text: str) -> None:
        version = session.engine.catalog_version
        if version != self._version:
            self._allowed.clear()
            self._version = version
        if text in self._allowed:
            return
        if self._access.current().restricted(self._user):
            self._look(session, text)
        if len(self._allowed) >= _TEXTS_MAX:
            self._allowed.clear()
        if len(text) < 10_000:
            self._allowed.add(text)

    def _look(self, session: SessionLike, text: str) -> None:
        bulk = bulk_insert.recognise(text) or bulk_insert.recognise_parameters(text)
        if bulk is not None:
            # Rows of constants: all that it names is in its head.
            text = bulk_insert.template(bulk)
        tokens = scan(text)
        for _, own in split(text, tokens):
            word = own[0].value if own[0].kind != "quoted" else ""
            if word in _SUPERUSERS:
                raise CallerMistake(
                    f"permission denied: only a superuser may use {word.upper()}",
                    sqlstate="42501",
                )
            if word == "copy":
                self._copy(session, Reader(own))
            elif word in _QUERIES:
                if word == "explain":
                    own = own[_explained(own) :]
                # Read by the same rules as the planner will, or it could be told another story.
                self._query(session, parse(for_sqlglot(text[: own[-1].end], own)[own[0].start :]))

    def _copy(self, session: SessionLike, reader: Reader) -> None:
        """COPY table FROM: INSERT. What COPY TO reads is planned as a query of its own."""
        reader.expect("copy")
        reader.accept("binary")
        if reader.accept("("):
            return
        name, schema = reader.name(), None
        if reader.accept("."):
            schema, name = name, reader.name()
        self._need(session, schema, name, "insert")

    def _query(self, session: SessionLike, tree: Any) -> None:
        if isinstance(tree, exp.Command) or tree.find(exp.Into) is not None:
            raise CallerMistake("permission denied for this statement", sqlstate="42501")
        targets: dict[int, str] = {}
        for kind, privilege in (
            (exp.Insert, "insert"), (exp.Update, "update"), (exp.Delete, "delete"),
        ):  # fmt: skip
            for found in tree.find_all(kind):
                table = found.this.find(exp.Table) if found.this is not None else None
                if table is not None:
                    targets[id(table)] = privilege
                    if kind is not exp.Insert or found.args.get("returning"):
                        # It also reads the rows.
                        self._need_table(session, table, "select")
                    conflict = found.args.get("conflict")
                    if conflict is not None and conflict.expressions:
                        self._need_table(session, table, "update")
        for table in tree.find_all(exp.Table):
            self._need_table(session, table, targets.get(id(table), "select"))

    def _need_table(self, session: SessionLike, table: Any, privilege: str) -> None:
        if not isinstance(table.this, exp.Identifier):
            return  # a function
        schema = identifier(table.args["db"]) if table.args.get("db") else None
        self._need(session, schema, identifier(table.this), privilege)

    def _need(self, session: SessionLike, schema: str | None, name: str, privilege: str) -> None:
        if schema in (PG_CATALOG, "information_schema"):
            return
        catalog = self._planner.catalog(session)
        known = catalog.find(name, schema) or catalog.view(name, schema)
        if schema != "polarless" and known is None:
            return  # nothing to protect, and the planner says what it is
        schema = known.schema if known is not None else schema or PUBLIC
        if not self._access.current().allows(self._user, schema, name, privilege):
            raise CallerMistake(
                f"permission denied for table {name}",
                sqlstate="42501",
                hint=f"A superuser may GRANT {privilege.upper()} ON {name}.",
            )


def _explained(tokens: list[Token]) -> int:
    """Where the statement behind EXPLAIN and its options begins."""
    for index, token in enumerate(tokens):
        if index and token.kind == WORD and token.value in _QUERIES:
            return index
    return len(tokens) - 1
