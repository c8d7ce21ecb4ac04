"""Which views stand on a table or view: they keep it from being dropped, or go with it.

A view is kept as the text of its query, so what it stands on is read from that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from compute.sql.catalog import Catalog, View
from compute.sql.definitions import sql_text
from compute.sql.environment import lookup_path
from compute.sql.syntax import identifier, parse
from polarless.errors import CallerMistake, PolarlessError

if TYPE_CHECKING:
    from compute.sql.plan import SessionLike

Place = tuple[str, str]


@lru_cache(maxsize=500)
def _named(text: str) -> frozenset[tuple[str | None, str]]:
    """(schema or None, name) of all that a query reads from."""
    try:
        tree = parse(text)
    except PolarlessError:
        return frozenset()
    return frozenset(
        (identifier(node.args["db"]) if node.args.get("db") else None, identifier(node.this))
        for node in tree.find_all(exp.Table)
        if isinstance(node.this, exp.Identifier)
    )


def reads(catalog: Catalog, view: View) -> set[Place]:
    """The tables, views and sequences that a view's query names."""
    found: set[Place] = set()
    for schema, name in _named(view.text):
        for place in (schema,) if schema is not None else lookup_path():
            if catalog.kind_of(name, place) is not None:
                found.add((place, name))
                break
    return found


def views_on(catalog: Catalog, places: Iterable[Place]) -> list[tuple[View, Place]]:
    """The views that stand on any of these, or on such a view; each with what it stands on."""
    gone = set(places)
    found: list[tuple[View, Place]] = []
    while True:
        more = [
            (view, min(reads(catalog, view) & gone))
            for place, view in catalog.views.items()
            if place not in gone and reads(catalog, view) & gone
        ]
        if not more:
            return found
        found += more
        gone |= {(view.schema, view.name) for view, _ in more}


def drop_views_on(
    session: SessionLike, catalog: Catalog, places: Iterable[Place], *, cascade: bool
) -> list[View]:
    """What stands on these goes too (it is returned, to be dropped), or it is 2BP01."""
    own = list(places)
    found = views_on(catalog, own)
    if found and not cascade:
        view, (schema, name) = found[0]
        kind = catalog.kind_of(name, schema)
        raise CallerMistake(
            f"cannot drop {kind} {name} because other objects depend on it",
            sqlstate="2BP01",
            detail=f"view {view.name} depends on {kind} {name}",
            hint="Use DROP ... CASCADE to drop the dependent objects too.",
        )
    for view, _ in found:
        session.notice("NOTICE", "00000", f"drop cascades to view {view.name}")
    return [view for view, _ in found]


def renamed_views(catalog: Catalog, old: Place, new: Place) -> list[View]:
    """The views that name a table or view which has another name now, with their new texts."""
    changed = []
    for view in catalog.views.values():
        if old not in reads(catalog, view):
            continue
        tree = parse(view.text)
        for node in list(tree.find_all(exp.Table)):
            if _is(node, old):
                _rename(node, old, new)
        changed.append(replace(view, text=sql_text(tree)))
    return changed


def _is(node: Any, place: Place) -> bool:
    if not isinstance(node.this, exp.Identifier) or identifier(node.this) != place[1]:
        return False
    schema = node.args.get("db")
    return place[0] in lookup_path() if schema is None else identifier(schema) == place[0]


def _rename(node: Any, old: Place, new: Place) -> None:
    if node.args.get("alias") is None and old[1] != new[1]:
        # Its columns are qualified by the name that it had.
        node.set("alias", exp.TableAlias(this=exp.to_identifier(old[1], quoted=True)))
    node.set("this", exp.to_identifier(new[1], quoted=True))
    node.set("db", exp.to_identifier(new[0], quoted=True))
