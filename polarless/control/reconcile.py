"""Compares what is with what should be, and emits what is missing. A core.

One storage, one home, one writer, all memory nodes attached, everybody told. It looks at the whole
picture each time, so a decision that failed, or whose answer was lost, is simply taken again, and a
control that comes back after a crash needs no other code. `failover` says what always holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from polarless.config import ControlConfig
from polarless.control.decisions import (
    Attach,
    Effect,
    Kill,
    Promote,
    Record,
    Save,
    Start,
    TakeHome,
    TellHome,
)
from polarless.control.elastic import reconcile_shape
from polarless.control.elastic_memory import reconcile_memory, share_mb
from polarless.control.membership import (
    ENDED,
    HUNG,
    PROMOTING,
    SERVING,
    STARTING,
    STOPPING,
    Member,
    Membership,
)
from polarless.wire.control import COMPUTE, HOME, MEMORY, RO, RW

# A writer that was asked to finish may take this long before it is superseded.
SWITCH_GRACE_S: Final = 3.0
# A reader that starts is not waited for any longer when there is no writer: a home that is new as
# well admits it only behind a writer's first advance.
READER_STARTS_S: Final = 2.0


@dataclass(slots=True)
class Promotion:
    """A reader on its way to be the writer."""

    name: str
    epoch: int
    reason: str
    previous: str
    began_at: float


@dataclass(slots=True)
class Loss:
    """The cluster has no writer: since when, why, and who was it."""

    at: float
    reason: str
    previous: str
    planned: bool = False
    target: str | None = None
    # Readers that refused in this loss; all of them again when none is left.
    refused: set[str] = field(default_factory=set)
    tries: int = 0
    not_before: float = 0.0
    # The event that ends it, if it is neither a switch nor a failover.
    kind: str = ""


class Picture:
    """What control knows and is doing, and what follows from it. `Failover` feeds it."""

    def __init__(
        self, members: Membership, config: ControlConfig, *, epoch: int, home_epoch: int
    ) -> None:
        self.members = members
        self.epoch = epoch
        self.home_epoch = home_epoch
        self.promotion: Promotion | None = None
        self.loss: Loss | None = None
        # Home epoch of a change of home under way, and who was home before it.
        self.taking_home: TakeHome | None = None
        self.settling = False
        self.stopping = False
        self.config = config
        self.home_lost_at = 0.0
        self.settle_until = 0.0
        self.previous_home: str | None = None
        # Memory node -> the home epoch under which the home was told of it.
        self.attached: dict[str, int] = {}
        # Calls under way: (member, kind).
        self.asked: set[tuple[str, str]] = set()
        # Fenced writers that answered again, and when.
        self.awake: dict[str, float] = {}
        # Readers beside the writer; those that are leaving, and since when.
        self.ro_wanted = max(0, len(members.of_kind(COMPUTE)) - 1)
        self.leaving: dict[str, float] = {}
        # Memory nodes, and the MiB of all of them together (0: not for this control to say); what
        # each is known to lend, and when one that could not is asked again.
        self.memory_wanted = len(members.of_kind(MEMORY))
        self.pool_mb = 0
        self.lent: dict[str, int] = {}
        self.lend_at: dict[str, float] = {}
        # All compute is released until a client comes.
        self.asleep = False
        self.idle_timeout_s = 0.0
        self.used_at = 0.0
        # Whose turn in a rolling restart is still to come.
        self.rolling: list[str] = []
        self.rolling_order: list[str] = []
        # The proxy that replaces its process: its name, its generation before, and since when.
        self.renewing: tuple[str, int, float] | None = None
        self.out: list[Effect] = []

    def reconcile(self, now: float) -> None:
        """Emit what is missing."""
        self._reconcile_home(now)
        reconcile_memory(self, now)
        reconcile_shape(self, now)
        if not self.asleep:
            self._reconcile_writer(now)
        for member in self.members.members.values():
            if member.state == ENDED and member.start_at <= now and self._wanted(member):
                self._start(member, now)
            elif member.state in (HUNG, STOPPING) and (
                member.role == HOME or now - member.since > self.config.kill_hung_after_s
            ):
                self.kill(member, "is hung" if member.state == HUNG else "does not stop")
                member.since = now
        self._reconcile_told(now)

    def _wanted(self, member: Member) -> bool:
        """Whether a member without a process should have one."""
        if member.name in self.leaving:
            return False
        return not (self.asleep and member.kind == COMPUTE)

    def _reconcile_home(self, now: float) -> None:
        home = self.members.home()
        if self.taking_home is not None or (home is not None and home.has_process):
            return
        heir = self.members.best_memory()
        if heir is not None:
            if home is not None:
                home.role = MEMORY
            heir.role = HOME
            self.attached.clear()
            self.home_epoch += 1
            self.save()
            self.taking_home = TakeHome(heir.name, self.home_epoch, self.previous_home)
            self.out.append(self.taking_home)
        elif home is None:
            # Nobody serves; the first that is started will be it.
            ended = [m for m in self.members.of_role(MEMORY) if m.state == ENDED]
            if ended:
                ended[0].role = HOME

    def _reconcile_writer(self, now: float) -> None:
        if self.promotion is not None:
            self._reconcile_promotion(now)
        writer = self.members.writer()
        if writer is not None and not self._superseded(writer, now):
            return
        home = self.members.home()
        if self.promotion is not None or self.taking_home is not None or home is None:
            return
        loss = self.loss
        if loss is None:
            loss = self.loss = Loss(now, "the cluster started", "")
        if now < loss.not_before:
            return
        if home.state == SERVING:
            heir = self.members.best_reader(frozenset(loss.refused))
            if heir is None and loss.refused:
                loss.refused.clear()
                heir = self.members.best_reader()
            if loss.target and loss.target in self.members:
                target = self.members[loss.target]
                loss.target = None
                heir = target if target.state == SERVING else heir
            if heir is not None:
                self._promote(heir, loss, now)
                return
        # No reader left: start a writer cold. One that is ended and due, the first by name.
        ended = [
            m for m in self.members.of_kind(COMPUTE)
            if m.state == ENDED and m.name not in self.leaving
        ]  # fmt: skip
        if ended and not any(self._may_be_heir(m, now) for m in self.members.of_role(RO)):
            min(ended, key=lambda m: (m.start_at, m.name)).role = RW

    @staticmethod
    def _may_be_heir(reader: Member, now: float) -> bool:
        """Whether it is worth while to wait for a reader that does not serve yet."""
        starts = reader.state == STARTING and now - reader.since < READER_STARTS_S
        return starts or reader.state == PROMOTING

    def _reconcile_promotion(self, now: float) -> None:
        """A promotion whose node hangs has failed: its epoch is over with the next one."""
        assert self.promotion is not None
        member = self.members[self.promotion.name]
        if member.state == HUNG:
            member.on("supersede", now)
            self.promotion = None

    def _superseded(self, writer: Member, now: float) -> bool:
        """Whether the writer hangs, or does not finish, and a reader can take over now."""
        late = writer.state == STOPPING and now - writer.since > SWITCH_GRACE_S
        if not late and writer.state != HUNG:
            return False
        home = self.members.home()
        ready = home is not None and home.state == SERVING and self.taking_home is None
        if not ready or self.members.best_reader() is None:
            return False
        writer.on("supersede", now)
        writer.role = RO
        reason = f"{writer.name} {'did not finish in time' if late else 'hangs'}"
        self.record("superseded", writer.name, "may write no more; left alone for a while")
        if self.loss is None:
            self.lost_writer(writer.name, reason, now)
        return True

    def _promote(self, heir: Member, loss: Loss, now: float) -> None:
        self.epoch += 1
        self.save()
        heir.on("promote", now)
        self.promotion = Promotion(heir.name, self.epoch, loss.reason, loss.previous, now)
        self.record("promote", heir.name, f"because {loss.reason}", epoch=self.epoch)
        self.out.append(Promote(heir.name, self.epoch, loss.reason))

    def _start(self, member: Member, now: float) -> None:
        home = self.members.home()
        if member.kind == COMPUTE and (home is None or self.taking_home is not None):
            return  # It would be told an address that is over.
        if member.role == RO and self.loss is not None:
            return  # Imports cost half a second of processor, which the new writer needs now.
        if member.role == HOME:
            self.home_epoch += 1
            self.attached.clear()
            self.save()
        if member.role == RW:
            self.epoch += 1
            self.save()
            if self.loss is not None and self.loss.previous:
                self.record("cold-start", member.name, f"because {self.loss.reason}")
        if member.kind == MEMORY:
            self.lent[member.name] = share_mb(self)
        member.epoch = self.epoch
        member.home_epoch = self.home_epoch
        member.on("start", now)
        member.answered_at = now
        self.out.append(Start(member.name))

    def _reconcile_told(self, now: float) -> None:
        home = self.members.home()
        if home is None or home.state != SERVING or self.taking_home is not None:
            return
        for member in self.members.members.values():
            if member.kind == COMPUTE and member.home_epoch != self.home_epoch:
                if member.state == STARTING:
                    self.kill(member, "was started with the address of an old home")
                    member.home_epoch = self.home_epoch
                elif member.is_live and (member.name, "home") not in self.asked:
                    self.asked.add((member.name, "home"))
                    self.out.append(TellHome(member.name, self.home_epoch))
            elif (
                member.role == MEMORY
                and member.state == SERVING
                and self.attached.get(member.name) != self.home_epoch
                and (member.name, "attach") not in self.asked
            ):
                self.asked.add((member.name, "attach"))
                self.out.append(Attach(member.name, self.home_epoch))

    # Small things.

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        if failures <= 1:
            return 0.0
        if failures >= self.config.failures_max:
            return self.config.backoff_failed_s
        growing: float = self.config.backoff_first_s * 2 ** (failures - 2)
        return min(self.config.backoff_max_s, growing)

    def lost_writer(self, name: str, reason: str, now: float, *, kind: str = "") -> None:
        """There is no writer from now on."""
        if self.loss is None:
            self.loss = Loss(now, reason, name, kind=kind)

    def lost_home(self, member: Member, now: float) -> None:
        """There is no home from now on."""
        self.previous_home = member.name
        self.home_lost_at = now
        self.attached.clear()

    def kill(self, member: Member, why: str) -> None:
        """SIGKILL, and say why."""
        self.record("kill", member.name, why)
        self.out.append(Kill(member.name))

    def save(self) -> None:
        """The epochs, before what follows."""
        self.out.append(Save(self.epoch, self.home_epoch))

    def record(self, event: str, node: str, text: str, **fields: Any) -> None:
        """A decision, for people."""
        self.out.append(Record(event, node, text, fields))
