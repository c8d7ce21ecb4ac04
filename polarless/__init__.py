"""polarless: a disaggregated database. This package holds the bottom shelf that every tier stands
on (errors, kernel, wire, net) and the top shelf that users touch (control, client, command line),
and nothing of the tiers between, which it starts as processes and never imports.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polarless.client.connect import Database, connect
    from polarless.client.kv import Table
    from polarless.client.transactions import Transaction
    from polarless.local import LocalCluster, cluster

__all__ = ["Database", "LocalCluster", "Table", "Transaction", "cluster", "connect"]

_HOMES = {
    "Database": "polarless.client.connect",
    "connect": "polarless.client.connect",
    "Table": "polarless.client.kv",
    "Transaction": "polarless.client.transactions",
    "LocalCluster": "polarless.local",
    "cluster": "polarless.local",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for: the node processes need none of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'polarless' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
