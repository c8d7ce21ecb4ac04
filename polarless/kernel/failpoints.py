"""Named places in the code where a test may stop, fail or kill the process.

``hit("commit.before_append")`` is one dict look-up while nothing is armed. The environment variable
``POLARLESS_FAILPOINTS="name=kill,other=error*3"`` arms some at start (read by a `__main__`); tests
and the simulator use `arm`. Actions: ``kill`` (SIGKILL to this process), ``error`` (raise
`FailpointError`), or any callable; ``*N`` lets it pass N times first.
"""

from __future__ import annotations

from collections.abc import Callable


class FailpointError(Exception):
    """Raised by a failpoint armed with ``error``; nothing in the product expects it."""


_armed: dict[str, list[Callable[[], None] | int]] = {}


def hit(name: str) -> None:
    """Run the action armed for ``name``, if any."""
    if not _armed:
        return
    entry = _armed.get(name)
    if entry is None:
        return
    action, passes = entry
    assert isinstance(passes, int) and callable(action)
    if passes > 0:
        entry[1] = passes - 1
        return
    action()


def arm(name: str, action: Callable[[], None], *, passes: int = 0) -> None:
    """Run ``action`` at ``name`` after letting it pass ``passes`` times."""
    _armed[name] = [action, passes]


def armed() -> list[str]:
    """The names that something is armed for."""
    return sorted(_armed)


def disarm(name: str | None = None) -> None:
    """Forget ``name``, or all."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def error(name: str) -> Callable[[], None]:
    """An action that raises `FailpointError`."""

    def action() -> None:
        raise FailpointError(name)

    return action


def parse(text: str, actions: dict[str, Callable[[str], Callable[[], None]]]) -> None:
    """Arm what ``name=action[*passes],...`` lists; ``actions`` maps an action's name to its maker.

    Raises ValueError for an unknown action.
    """
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, spec = item.partition("=")
        kind, _, passes = spec.partition("*")
        if kind not in actions:
            raise ValueError(f"failpoint {name}: unknown action {kind!r}, use one of {[*actions]}")
        arm(name, actions[kind](name), passes=int(passes or 0))
