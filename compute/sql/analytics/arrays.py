"""Array types, as far as queries make them."""

from __future__ import annotations

from compute.sql.mistakes import not_supported
from compute.sql.types import BY_OID, SqlType, display


def array_type(element: SqlType) -> SqlType:
    """The type of arrays of a type. Raises 0A000 if there is none yet."""
    found = BY_OID.get(element.array_oid)
    if found is None or getattr(found, "element", None) is None:
        raise not_supported(f"an array of {display(element)}")
    return found
