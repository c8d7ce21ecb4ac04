"""Views: a view in FROM is its query in parentheses."""

from __future__ import annotations

from compute.sql.analytics.query import Builder, Query, finished
from compute.sql.binder import Parameters
from compute.sql.catalog import Catalog, View
from compute.sql.syntax import parse
from compute.sql.types import SqlType
from polarless.errors import PolarlessError


def expand(builder: Builder, view: View) -> Query:
    """The query of a view, with the view's own names for its columns."""
    # Names of functions are looked up in the text that they were parsed from.
    outer, builder.text = builder.text, view.text
    try:
        query = finished(builder, builder.piece(parse(view.text), None))
    finally:
        builder.text = outer
    query.names = [*view.columns, *query.names[len(view.columns) :]]
    return query


def columns_of(
    catalog: Catalog, view: View
) -> tuple[tuple[str, SqlType, int, bool, str | None], ...]:
    """Names and types of a view's columns; none, if its query means nothing any more."""
    try:
        query = expand(Builder(catalog, Parameters(), view.text, exact=False), view)
    except PolarlessError:
        return ()
    return tuple(
        (name, leaf.type, leaf.typmod, False, None) for name, leaf in zip(query.names, query.leaves)
    )
