"""Stale pages that readers wait for while the writer is asked for the newest image."""

from __future__ import annotations

from typing import Any

# One reader's fetch may wait for a pull; so many different pages may be pulled at a time.
PULLS_MAX = 4096
# Each refusal means that a commit overtook the image. After so many, storage is the better source.
REFUSALS_MAX = 2


class Pull:
    """One page's pull. ``waiters`` are (connection, call).

    ``slot`` is (address, generation) of the slot that was offered to the writer along with the
    question, so that it can write at once; None while none is.
    """

    __slots__ = ("deadline_us", "page_id", "refusals", "slot", "ticket", "waiters")

    def __init__(self, page_id: int, ticket: int, deadline_us: int) -> None:
        self.page_id = page_id
        self.ticket = ticket
        self.deadline_us = deadline_us
        self.refusals = 0
        self.slot: tuple[int, int] | None = None
        self.waiters: list[tuple[int, Any]] = []


class Pulls:
    """Pulls under way, oldest first."""

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._pulls: dict[int, Pull] = {}
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._pulls)

    def get(self, page_id: int) -> Pull | None:
        """The pull of this page, if there is one."""
        return self._pulls.get(page_id)

    def start(self, page_id: int, now_us: int) -> Pull | None:
        """A new pull, or None if there are too many."""
        assert page_id not in self._pulls
        if len(self._pulls) >= PULLS_MAX:
            return None
        self._ticket += 1
        pull = self._pulls[page_id] = Pull(page_id, self._ticket, now_us + self._timeout_us)
        return pull

    def finish(self, page_id: int) -> Pull | None:
        """The pull is over."""
        return self._pulls.pop(page_id, None)

    def refused(self, page_id: int) -> bool:
        """An image came too late; whether to ask once more."""
        pull = self._pulls.get(page_id)
        if pull is None:
            return False
        pull.refusals += 1
        return pull.refusals <= REFUSALS_MAX

    def expired(self, now_us: int) -> list[Pull]:
        """Pulls whose time is over, taken out."""
        late = []
        for pull in self._pulls.values():
            if pull.deadline_us > now_us:
                break
            late.append(pull)
        for pull in late:
            del self._pulls[pull.page_id]
        return late

    def finish_all(self) -> list[Pull]:
        """There is nobody to ask any more."""
        pulls, self._pulls = list(self._pulls.values()), {}
        return pulls

    def drop_waiter(self, connection: int) -> None:
        """A reader is gone."""
        for pull in self._pulls.values():
            pull.waiters = [entry for entry in pull.waiters if entry[0] != connection]
