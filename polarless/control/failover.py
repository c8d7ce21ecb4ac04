"""Decides what is done when something dies, hangs, comes back or is asked for. A core.

`Failover.step` takes an event into the picture, and `reconcile` emits what is then missing.

Invariants:

* An epoch is used once: it is raised and saved before the promotion or start that carries it.
* At most one promotion and one change of home are under way; a promotion waits for the home.
* The home is changed only when the old one's process has ended. A hung home is killed first.
* A hung writer is superseded, never killed, if somebody can take over: its epoch is over, so
  whatever it still sends is refused. It is asked to leave when it answers again.
* What ended is started again: at once, then with growing pauses, never in a hurry for ever.

What happens to a writer, by way of an example::

    Ended(compute-1)      -> Save(epoch=2) Promote(compute-2, epoch=2) Start(compute-1 as a reader)
    Promoted(compute-2)   -> Record(failover, with its times)
"""

from __future__ import annotations

from typing import Any, Final

from polarless.control.decisions import (
    Begin,
    Detach,
    Effect,
    Ended,
    EpochSeen,
    Event,
    HomeRefused,
    HomeTaken,
    LearnEpoch,
    Lent,
    Pong,
    Promoted,
    PromoteRefused,
    Ready,
    RestartAsked,
    ScaleAsked,
    SleepAsked,
    Stop,
    StopAsked,
    SwitchAsked,
    TellFenced,
    Tick,
    Told,
    Wanted,
)
from polarless.control.elastic import begin_rolling, idle_since, next_rolling, sleep, wake
from polarless.control.elastic_memory import lent
from polarless.control.membership import (
    FENCED,
    HUNG,
    PROMOTING,
    SERVING,
    STARTING,
    STOPPING,
    Member,
)
from polarless.control.reconcile import Loss, Picture
from polarless.control.settle import settle
from polarless.wire.control import EXIT_FENCED, HOME, MEMORY, PROXY, RO, RW

# A writer that was asked to finish may take this long before it is superseded.
SWITCH_GRACE_S: Final = 3.0
# Silence for so many of its longest gaps means that a node hangs. A gap is forgotten in a minute.
HUNG_GAPS: Final = 4.0
GAP_FADES: Final = 0.995


class Failover(Picture):
    """The decisions of one control plane."""

    def step(self, event: Event, now: float) -> list[Effect]:
        """What is to be done because of ``event``, in this order."""
        match event:
            case Tick(paused_s):
                self._tick(paused_s, now)
            case Pong(name, fields):
                self._pong(self.members[name], fields, now)
            case Ready(name, fields):
                self._ready(self.members[name], fields, now)
            case Ended(name, code):
                self._ended(self.members[name], code, now)
            case Promoted(name, epoch, steps):
                self._promoted(name, epoch, steps, now)
            case PromoteRefused():
                self._promote_refused(event, now)
            case HomeTaken(name, home_epoch, steps):
                self._home_taken(name, home_epoch, steps, now)
            case HomeRefused(name, home_epoch, error):
                self._home_refused(name, home_epoch, error, now)
            case Told():
                self._told(event)
            case EpochSeen(epoch):
                self.epoch = max(self.epoch, epoch)
            case SwitchAsked(target):
                self._switch_asked(target, now)
            case Begin(adopted):
                self._begin(adopted, now)
            case ScaleAsked():
                self._scale_asked(event)
            case Lent():
                lent(self, event, now)
            case RestartAsked(role):
                begin_rolling(self, role)
            case Wanted():
                self._wake(now)
            case SleepAsked():
                if not self.asleep:
                    sleep(self, "it was asked for", now)
            case StopAsked():
                self.stopping = True
        if not self.settling and not self.stopping:
            writer = next_rolling(self, now)
            if writer is not None:
                self._switch_asked(None, now)
            self.reconcile(now)
        out, self.out = self.out, []
        return out

    def switch_refusal(self, target: str | None) -> str | None:
        """Why the writer cannot be switched now, or None."""
        if self.stopping or self.settling:
            return "the cluster is not up"
        if self.loss is not None or self.promotion is not None:
            return "a failover is under way already"
        if target is not None:
            member = self.members.members.get(target)
            if member is None or member.role != RO or member.state != SERVING:
                return f"{target} is not a reader that serves"
        elif self.members.best_reader() is None:
            return "there is no reader that could take over"
        return None

    # Events.

    def _begin(self, adopted: bool, now: float) -> None:
        self.settling = adopted
        self.settle_until = now + self.config.settle_timeout_s
        if adopted:
            running = sorted(m.name for m in self.members.members.values() if m.has_process)
            self.record(
                "control-back",
                "control",
                f"was started again and found running: {', '.join(running)}",
            )

    def _tick(self, paused_s: float, now: float) -> None:
        for member in self.members.members.values():
            # While control stood still nobody could answer it.
            member.answered_at += paused_s
            silent_s = now - member.answered_at
            if member.is_live and silent_s > self._patience_s(member):
                member.on("silent", now)
                self.record("hung", member.name, f"no answer for {silent_s:.1f} s")
            elif member.state == STARTING and now - member.since > self.config.start_timeout_s:
                self.kill(member, f"did not serve within {self.config.start_timeout_s:.0f} s")
                member.since = now
            elif (
                member.state == FENCED
                and now - self.awake.get(member.name, now) > self.config.fenced_grace_s
            ):
                self.kill(member, "was fenced and did not leave")
                self.awake[member.name] = now
            elif (
                member.state == FENCED
                and member.name not in self.awake
                and now - member.since > self.config.kill_fenced_after_s
            ):
                self.kill(member, "was replaced and does not wake up")
                member.since = now
        idle_since(self, now)
        if self.settling and (now >= self.settle_until or self._all_answered()):
            settle(self, now)

    def _patience_s(self, member: Member) -> float:
        """How long a node may be silent. On a machine that is busy all answers take longer."""
        config = self.config
        return min(max(config.hung_after_s, HUNG_GAPS * member.gap_s), config.hung_after_max_s)

    def _all_answered(self) -> bool:
        return not any(
            member.state == STARTING or member.fields.get("state") == "promoting"
            for member in self.members.members.values()
        )

    def _pong(self, member: Member, fields: dict[str, Any], now: float) -> None:
        member.fields = fields
        member.gap_s = max(now - member.answered_at, GAP_FADES * member.gap_s)
        member.answered_at = now
        if member.state == HUNG:
            member.on("answers", now)
            self.record("answers", member.name, "answers again")
        elif member.kind == PROXY and fields.get("wants_compute"):
            self._wake(now)
        elif member.state == FENCED and member.name not in self.awake:
            self.awake[member.name] = now
            self.record("awake", member.name, "an old writer woke up and is told to leave")
            self.out.append(TellFenced(member.name, self.epoch))

    def _ready(self, member: Member, fields: dict[str, Any], now: float) -> None:
        if member.state != STARTING:
            self._pong(member, fields, now)
            return
        took_s = now - member.since
        member.fields = fields
        member.answered_at = now
        member.on("ready", now)
        if self.settling:
            return
        text = f"serves as {member.role}, {took_s:.2f} s after its start"
        self.record("serving", member.name, text, role=member.role, seconds=round(took_s, 3))
        if member.role == RW and self.loss is not None:
            self._regained(member.name, self.loss, now, {"cold_start": True})
        if member.role == HOME:
            self.home_lost_at = 0.0

    def _ended(self, member: Member, code: int | None, now: float) -> None:
        was = member.state
        lived_s = now - member.since
        member.on("ended", now)
        member.pid = 0
        member.reason = describe_end(code)
        member.fields = {}
        self.awake.pop(member.name, None)
        self.asked = {key for key in self.asked if key[0] != member.name}
        if self.stopping:
            return
        self.record("ended", member.name, f"{member.role} {member.reason}", role=member.role)
        asked = was == STOPPING
        quick = was == STARTING or lived_s < self.config.healthy_after_s
        member.failures = 0 if asked else member.failures + 1 if quick else 1
        member.start_at = now + self.pause_s(member.failures)
        if member.failures == self.config.failures_max:
            self.record("failing", member.name, f"ended {member.failures} times in a row")
        if code == EXIT_FENCED and was == STARTING:
            self.out.append(LearnEpoch())
        if self.promotion is not None and self.promotion.name == member.name:
            self.promotion = None
        if self.taking_home is not None and self.taking_home.name == member.name:
            self.taking_home = None
        if member.role == RW and self.asleep:
            member.role = RO
        elif member.role == RW:
            member.role = RO
            self.lost_writer(member.name, f"{member.name} {member.reason}", now)
        elif member.role == HOME:
            self.lost_home(member, now)
        elif member.role == MEMORY and self.attached.pop(member.name, None) is not None:
            self.out.append(Detach(member.name))

    def _promoted(self, name: str, epoch: int, steps: dict[str, Any], now: float) -> None:
        promotion = self.promotion
        if promotion is None or (promotion.name, promotion.epoch) != (name, epoch):
            return  # An answer that came too late; a higher epoch is under way.
        self.promotion = None
        member = self.members[name]
        if member.state == PROMOTING:
            member.on("promoted", now)
        member.role = RW
        member.epoch = epoch
        if self.loss is not None:
            self._regained(name, self.loss, now, steps)

    def _regained(self, name: str, loss: Loss, now: float, steps: dict[str, Any]) -> None:
        seconds = now - loss.at
        self.loss = None
        kind = loss.kind or ("switch" if loss.planned else "failover")
        self.record(
            kind, name, f"is the writer, {seconds * 1000:.0f} ms after: {loss.reason}",
            previous=loss.previous, epoch=self.epoch, seconds=round(seconds, 4), steps=steps,
        )  # fmt: skip

    def _promote_refused(self, event: PromoteRefused, now: float) -> None:
        self.epoch = max(self.epoch, event.seen_epoch)
        promotion = self.promotion
        if promotion is None or (promotion.name, promotion.epoch) != (event.name, event.epoch):
            return
        self.promotion = None
        member = self.members[event.name]
        if member.state == PROMOTING:
            member.on("refused", now)
        self.record("promote-refused", event.name, event.error, epoch=event.epoch)
        if self.loss is not None:
            self.loss.refused.add(event.name)
            self.loss.tries += 1
            self.loss.not_before = now + self.pause_s(self.loss.tries)

    def _home_taken(self, name: str, home_epoch: int, steps: dict[str, Any], now: float) -> None:
        taking = self.taking_home
        if taking is None or (taking.name, taking.home_epoch) != (name, home_epoch):
            return
        self.taking_home = None
        seconds = now - self.home_lost_at
        self.record(
            "home", name, f"is the home, {seconds * 1000:.0f} ms after {taking.previous} was lost",
            home_epoch=home_epoch, seconds=round(seconds, 4), steps=steps,
        )  # fmt: skip

    def _home_refused(self, name: str, home_epoch: int, error: str, now: float) -> None:
        taking = self.taking_home
        if taking is None or (taking.name, taking.home_epoch) != (name, home_epoch):
            return
        self.taking_home = None
        self.record("home-refused", name, error, home_epoch=home_epoch)
        # A half-made home is of no use to anybody.
        member = self.members[name]
        if member.has_process:
            self.kill(member, "could not become the home")

    def _told(self, event: Told) -> None:
        self.asked.discard((event.name, event.kind))
        if event.error:
            self.record(f"{event.kind}-refused", event.name, event.error)
        elif event.kind == "home":
            self.members[event.name].home_epoch = event.home_epoch
        elif event.kind == "attach" and self.members[event.name].is_live:
            self.attached[event.name] = event.home_epoch

    def _scale_asked(self, event: ScaleAsked) -> None:
        if event.ro is not None:
            self.ro_wanted = event.ro
        if event.memory_nodes is not None:
            self.memory_wanted = event.memory_nodes
        if event.pool_mb is not None:
            self.pool_mb = event.pool_mb

    def _wake(self, now: float) -> None:
        if self.asleep:
            wake(self, "a client came", now)

    def _switch_asked(self, target: str | None, now: float) -> None:
        writer = self.members.writer()
        if self.switch_refusal(target) is not None or writer is None:
            return
        self.loss = Loss(now, "a switch was asked for", writer.name, planned=True, target=target)
        self.record("switch-asked", writer.name, "is asked to finish")
        if writer.state in (SERVING, HUNG):
            writer.on("stop", now)
        self.out.append(Stop(writer.name))


def describe_end(code: int | None) -> str:
    """What a return code says, in words."""
    if code is None:
        return "ended"
    if code < 0:
        return f"was killed by signal {-code}"
    if code == EXIT_FENCED:
        return "left: it was fenced"
    return "ended in good order" if code == 0 else f"failed with exit code {code}"
