"""What the session's settings say about how values are read and printed, for the code that does it.

`current` is what holds for the statement that is being planned or run in this thread. A session
whose settings are the usual ones (UTC, ISO, ...) leaves it alone, and that is all that the hot path
pays. Any other session has its plans made, kept and run under an `Environment` of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from compute.sql import zones
from compute.sql.zones import UTC_ZONE, Zone

if TYPE_CHECKING:
    from compute.sql.plan import SettingsLike


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings by which values are read and printed. Equal ones share their plans."""

    zone: Zone = UTC_ZONE
    date_order: str = "MDY"
    interval_style: str = "postgres"
    bytea_output: str = "hex"
    search_path: tuple[str, ...] = ("public",)
    # Where the session's temporary tables are, which are found before all others.
    temporary: str = ""


USUAL: Final = Environment()
TEMPORARY: Final = "polarless.temporary_schema"


class Current(threading.local):
    """See the module's docstring."""

    environment: Environment = USUAL
    # When the transaction began, for 'now' and 'today'; and whether a text used it: then the plan
    # that was made of it is good once only.
    now_us: int = 0
    volatile: bool = False
    # The enums of the catalog that was read last, by schema and name.
    types: Any = None


current: Final = Current()


def of_settings(settings: SettingsLike) -> Environment | None:
    """The environment that settings ask for; None for the usual one."""
    found = Environment(
        zones.find(settings.show("timezone"), setting=True),
        settings.show("datestyle").rpartition(" ")[2],
        settings.show("intervalstyle").lower(),
        settings.show("bytea_output").lower(),
        path_of(settings.show("search_path")),
        settings.show(TEMPORARY),
    )
    return None if found == USUAL else found


def lookup_path() -> tuple[str, ...]:
    """The schemas in which a bare name is looked up."""
    found = current.environment
    return (found.temporary, *found.search_path) if found.temporary else found.search_path


def creation_schema() -> str:
    """The schema that gets what is made under a bare name."""
    path = current.environment.search_path
    return path[0] if path else "public"


# The settings that make one.
NAMES: Final = frozenset(
    {"bytea_output", "datestyle", "intervalstyle", "search_path", "timezone", TEMPORARY}
)


def path_of(text: str) -> tuple[str, ...]:
    """The schemas of a search_path, without those that are always searched.

    Nobody has a schema of his own name unless he made it; then he names it.
    """
    names: list[str] = []
    for part in text.split(","):
        name = part.strip()
        name = name[1:-1].replace('""', '"') if name[:1] == '"' else name.lower()
        if name and name not in ("$user", "pg_catalog") and name not in names:
            names.append(name)
    return tuple(names)


def run(environment: Environment, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function under an environment."""
    before, current.environment = current.environment, environment
    try:
        return function(*args)
    finally:
        current.environment = before


class Under:
    """A coroutine each of whose steps runs under an environment."""

    __slots__ = ("_coroutine", "_environment")

    def __init__(self, environment: Environment, coroutine: Any) -> None:
        self._environment = environment
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                if error is not None:
                    raised, error = error, None
                    waited = run(self._environment, steps.throw, raised)
                else:
                    waited = run(self._environment, steps.send, value)
            except StopIteration as done:
                return done.value
            try:
                value = yield waited
            except BaseException as caught:
                error = caught


async def under(environment: Environment, coroutine: Any) -> Any:
    """The same as a coroutine."""
    return await Under(environment, coroutine)
