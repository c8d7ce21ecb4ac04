"""What control asks of the nodes. Each call takes time; its outcome is an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polarless.config import ControlConfig
from polarless.control.crew import Crew
from polarless.control.decisions import (
    Attach,
    EpochSeen,
    Event,
    HomeRefused,
    HomeTaken,
    Lend,
    Lent,
    Promote,
    Promoted,
    PromoteRefused,
    TakeHome,
    TellHome,
    Told,
)
from polarless.control.failover import Failover
from polarless.errors import ConnectionLost, Fenced, PolarlessError
from polarless.wire.control import MEMORY
from polarless.wire.storage import TAIL, LogTail

SMALL_CALL_S: Final = 2.0
# The home gives up a little earlier, and says why.
LEND_CALL_S: Final = 30.0


class Calls:
    """Calls to the nodes on behalf of the core."""

    def __init__(
        self, core: Failover, crew: Crew, config: ControlConfig, emit: Callable[[Event], None]
    ) -> None:
        self._core = core
        self._crew = crew
        self._config = config
        self._emit = emit

    async def promote(self, effect: Promote) -> None:
        """Make a reader the writer."""
        name, epoch = effect.name, effect.epoch
        home = self._core.members.home()
        plan = {
            "reason": effect.reason,
            "home": home.address if home else "",
            "home_epoch": self._core.home_epoch,
        }
        try:
            steps = await self.call(
                name, "promote", epoch, plan, deadline_s=self._config.promote_timeout_s
            )
        except Fenced as error:
            seen = await self._storage_epoch()
            self._emit(PromoteRefused(name, epoch, error.message, seen_epoch=seen))
        except PolarlessError as error:
            self._emit(PromoteRefused(name, epoch, error.message))
        else:
            self._emit(Promoted(name, epoch, dict(steps or {})))

    async def take_home(self, effect: TakeHome) -> None:
        """Make a memory node the home."""
        name, home_epoch = effect.name, effect.home_epoch
        others = {
            member.name: member.address
            for member in self._core.members.of_kind(MEMORY)
            if member.is_live and member.name != name
        }
        try:
            steps = await self.call(
                name, "become_home", home_epoch, self._core.epoch, others,
                deadline_s=self._config.home_timeout_s,
            )  # fmt: skip
        except PolarlessError as error:
            self._emit(HomeRefused(name, home_epoch, error.message))
        else:
            self._emit(HomeTaken(name, home_epoch, dict(steps or {})))

    async def tell_home(self, effect: TellHome) -> None:
        """Tell a compute node where the home is."""
        home = self._core.members.home()
        address = home.address if home else ""
        error = await self.attempt(effect.name, "home", address, effect.home_epoch, {})
        self._emit(Told(effect.name, "home", effect.home_epoch, error))

    async def attach(self, effect: Attach) -> None:
        """Tell the home of a memory node."""
        address = self._core.members[effect.name].address
        link = self._crew.links.get(effect.name)
        fields = dict(link.ready) if link else {}
        error = await self.attempt_home("attach_node", effect.name, address, fields)
        self._emit(Told(effect.name, "attach", effect.home_epoch, error))

    async def lend(self, effect: Lend) -> None:
        """Have the home use so much memory of a memory node; it empties what is above that."""
        home = self._core.members.home()
        error = "there is no home"
        if home is not None:
            try:
                await self.call(
                    home.name, "lend", effect.name, effect.memory_mb, deadline_s=LEND_CALL_S
                )
                error = ""
            except PolarlessError as failed:
                error = failed.message
        self._emit(Lent(effect.name, effect.memory_mb, error))

    async def learn_epoch(self) -> None:
        """Ask storage for the epoch it holds."""
        self._emit(EpochSeen(await self._storage_epoch()))

    async def call(self, name: str, method: str, *args: Any, deadline_s: float) -> Any:
        """Call a node. Raises what it answers, or `ConnectionLost` if it has no process."""
        link = self._crew.links.get(name)
        if link is None:
            raise ConnectionLost(f"{name} has no process")
        return await link.call(method, *args, deadline_s=deadline_s)

    async def attempt(self, name: str, method: str, *args: Any) -> str:
        """Call a node; what went wrong, or an empty string."""
        try:
            await self.call(name, method, *args, deadline_s=self._config.home_timeout_s)
        except PolarlessError as error:
            return error.message
        return ""

    async def attempt_home(self, method: str, *args: Any) -> str:
        """The same with the home."""
        home = self._core.members.home()
        return await self.attempt(home.name, method, *args) if home else "there is no home"

    async def fence(self, name: str, epoch: int) -> None:
        """Tell an old writer that it is one; that it does not answer is no surprise."""
        await self.attempt(name, "fenced", epoch)

    async def renew(self, name: str) -> None:
        """Have a proxy replace its process; its generation says when it has."""
        await self.attempt(name, "restart")

    async def detach(self, name: str) -> None:
        """Tell the home that a memory node is gone; a lost connection told it as well."""
        await self.attempt_home("detach_node", name)

    async def _storage_epoch(self) -> int:
        try:
            storage = self._core.members.storage().name
            tail = await self.call(storage, TAIL, deadline_s=SMALL_CALL_S)
            return LogTail(*tail).epoch
        except PolarlessError:
            return 0
