"""Core, flow, edge: what each module may touch.

* **core**: no I/O, no clock, no chance, no event loop. Values in, values out.
* **flow**: may await, and awaits only what it was handed.
* **edge**: where the real world is: sockets, files, processes, clocks.

`RULES` gives every module its class; the first pattern that fits decides. A module that no pattern
fits fails the test, so that whoever adds one says which it is. Start with core.

Only what the source says is read, by its syntax tree: nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("polarless", "memory_pool", "storage", "compute", "bench")

CORE, FLOW, EDGE = "core", "flow", "edge"

# "*" stands for one path component.
RULES: tuple[tuple[str, str], ...] = (
    ("*/__init__.py", CORE),
    ("*/*/__init__.py", CORE),
    ("*/*/*/__init__.py", CORE),
    ("*/__main__.py", EDGE),
    ("*/*/__main__.py", EDGE),
    # polarless: both ends
    ("polarless/errors.py", CORE),
    ("polarless/config.py", CORE),
    ("polarless/kernel/*.py", CORE),
    ("polarless/wire/*.py", CORE),
    ("polarless/net/*.py", EDGE),
    ("polarless/control/membership.py", CORE),
    ("polarless/control/failover.py", CORE),
    ("polarless/control/reconcile.py", CORE),
    ("polarless/control/settle.py", CORE),
    ("polarless/control/decisions.py", CORE),
    ("polarless/control/launch.py", CORE),
    ("polarless/control/elastic.py", CORE),
    ("polarless/control/elastic_memory.py", CORE),
    ("polarless/control/autoscale.py", CORE),
    ("polarless/control/openapi.py", CORE),
    ("polarless/control/client.py", EDGE),
    ("polarless/control/offline.py", EDGE),
    ("polarless/control/watch.py", EDGE),
    ("polarless/control/*.py", FLOW),
    ("polarless/proxy/messages.py", CORE),
    ("polarless/proxy/record.py", CORE),
    ("polarless/proxy/startup.py", CORE),
    ("polarless/proxy/*.py", FLOW),
    ("polarless/client/*.py", EDGE),
    ("polarless/local.py", EDGE),
    ("polarless/demo.py", EDGE),
    ("polarless/demo_load.py", EDGE),
    ("polarless/cli.py", EDGE),
    ("polarless/commands/*.py", EDGE),
    # memory_pool
    ("memory_pool/directory/*.py", CORE),
    ("memory_pool/slots.py", CORE),
    ("memory_pool/eviction.py", CORE),
    ("memory_pool/capacity.py", CORE),
    ("memory_pool/tables.py", CORE),
    ("memory_pool/home.py", CORE),
    ("memory_pool/home_state.py", CORE),
    ("memory_pool/home_pages.py", CORE),
    ("memory_pool/home_commits.py", CORE),
    ("memory_pool/home_members.py", CORE),
    ("memory_pool/home_claims.py", CORE),
    ("memory_pool/home_rebuild.py", CORE),
    ("memory_pool/fabric/shared.py", EDGE),
    ("memory_pool/fabric/region.py", CORE),
    ("memory_pool/fabric/verbs.py", CORE),
    ("memory_pool/fabric/*.py", FLOW),
    ("memory_pool/client.py", FLOW),
    ("memory_pool/channel.py", FLOW),
    ("memory_pool/links.py", FLOW),
    ("memory_pool/slab_node.py", FLOW),
    ("memory_pool/home_node.py", FLOW),
    ("memory_pool/node.py", FLOW),
    # storage
    ("storage/log/segment.py", CORE),
    ("storage/log/chunk.py", CORE),
    ("storage/log/*.py", FLOW),
    ("storage/pages/pending.py", CORE),
    ("storage/pages/materialize.py", CORE),
    ("storage/pages/*.py", FLOW),
    ("storage/backends/*.py", EDGE),
    ("storage/client.py", FLOW),
    ("storage/engine.py", FLOW),
    ("storage/node.py", FLOW),
    ("storage/dump.py", EDGE),
    # compute
    ("compute/role.py", CORE),
    ("compute/pools.py", CORE),
    ("compute/pgwire/*.py", CORE),
    ("compute/buffer/frames.py", CORE),
    ("compute/buffer/replacement.py", CORE),
    ("compute/buffer/*.py", FLOW),
    ("compute/btree/*.py", CORE),
    ("compute/txn/*.py", CORE),
    ("compute/sql/*.py", FLOW),
    # DuckDB is a library with threads of its own: no clock, no file, no socket.
    ("compute/sql/builtins/*.py", CORE),
    ("compute/sql/analytics/*.py", FLOW),
    ("compute/sql/catalogs/*.py", FLOW),
    ("compute/session/limits.py", CORE),
    ("compute/session/positions.py", CORE),
    ("compute/session/settings.py", CORE),
    ("compute/session/statements.py", CORE),
    ("compute/session/*.py", FLOW),
    ("compute/server.py", FLOW),
    ("compute/relay.py", FLOW),
    ("compute/greeting.py", FLOW),
    ("compute/membership.py", FLOW),
    ("compute/verify.py", FLOW),
    ("compute/checking.py", FLOW),
    ("compute/node.py", FLOW),
    ("bench/*.py", EDGE),
    ("bench/*/*.py", EDGE),
)

# Modules that bring in the world. A core may import none of them; ``os`` is here for what it does
# to files, and os.environ is configuration, which is handed in too.
FORBIDDEN_IN_CORE = {
    *("asyncio", "uvloop", "aiohttp", "asyncpg", "lmdb"),
    *("socket", "ssl", "select", "selectors", "subprocess", "signal", "mmap", "tempfile", "shutil"),
    *("threading", "multiprocessing", "concurrent"),
    *("time", "random", "secrets", "uuid", "os"),
}

# What a flow may import but not call: it has a World for that.
WORLDLY_MODULES = {"time", "random", "secrets", "socket", "tempfile", "shutil"}
WORLDLY_CALLS = {
    *("open", "io.open", "os.open", "os.urandom", "os.fsync", "os.fdatasync", "os.replace"),
    *("os.rename", "os.unlink", "os.remove", "os.mkdir", "os.makedirs", "os.listdir", "os.kill"),
    *("asyncio.open_connection", "asyncio.start_server", "asyncio.open_unix_connection"),
    *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
    *("uuid.uuid1", "uuid.uuid4", "datetime.datetime.now", "datetime.datetime.utcnow"),
    *("datetime.date.today", "subprocess.run", "subprocess.Popen"),
}


def modules() -> list[str]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def fits(module: str, pattern: str) -> bool:
    names, patterns = module.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def classify(module: str) -> str | None:
    return next((layer for pattern, layer in RULES if fits(module, pattern)), None)


# ------------------------------------------------------------------------------ reading a module


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and what is below it, without ``if TYPE_CHECKING:`` blocks."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                yield from runtime_nodes(other)
        else:
            yield from runtime_nodes(child)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and first name of each module imported at run time, this project's left out."""
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each call, as far as the imports of the module tell it."""
    known: dict[str, str] = {}
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            first, _, rest = name.partition(".")
            if first in known:
                yield node.lineno, known[first] + ("." + rest if rest else "")
            elif not rest:
                yield node.lineno, first


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or attribute, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join(reversed([*parts, node.id]))


def core_faults(tree: ast.AST) -> list[str]:
    faults = [
        f"line {line}: a core imports {name}"
        for line, name in imports(tree)
        if name in FORBIDDEN_IN_CORE
    ]
    return faults + flow_faults(tree)


def flow_faults(tree: ast.AST) -> list[str]:
    return [
        f"line {line}: {name}() belongs to the edge"
        for line, name in calls(tree)
        if name in WORLDLY_CALLS or name.partition(".")[0] in WORLDLY_MODULES
    ]


# ------------------------------------------------------------------------------------- the tests


def test_every_module_is_core_flow_or_edge() -> None:
    homeless = [module for module in modules() if classify(module) is None]
    assert not homeless, f"give these a line in RULES of {Path(__file__).name}: {homeless}"


@pytest.mark.parametrize("module", [m for m in modules() if classify(m) in (CORE, FLOW)])
def test_module_stays_in_its_layer(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"), module)
    faults = core_faults(tree) if classify(module) == CORE else flow_faults(tree)
    assert not faults, f"{module} is {classify(module)}:\n  " + "\n  ".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import os.path",
        "from time import monotonic",
        "def f() -> None:\n    import random",
        "open('x')",
    ],
)
def test_core_that_touches_the_world_is_refused(source: str) -> None:
    assert core_faults(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "from time import monotonic as now\nnow()",
        "import random as r\nr.choice([1])",
        "import socket\nsocket.socket()",
        "import asyncio\nasyncio.start_server(print)",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_flow_that_calls_the_world_is_refused(source: str) -> None:
    assert flow_faults(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
        "import asyncio\nasyncio.TaskGroup()",
        "class A:\n    def time(self) -> int:\n        return self.time()",
        "clock.time()",
    ],
)
def test_what_was_handed_in_may_be_called(source: str) -> None:
    assert not flow_faults(ast.parse(source))
