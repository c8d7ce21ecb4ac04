"""How many compute nodes there are, and who is restarted next. A core, beside `reconcile`.

* Readers come and go by number. One that is to leave is *drained* first: proxies give it nothing
  new, and what it is running may end; then it is stopped and forgotten.
* Asleep: no client for ``idle_timeout_s`` releases all compute. Home and pool stay as they are, so
  the writer that the next client wakes finds its pages there.
* A rolling restart takes one node at a time, and the next only when all serve again. The writer's
  turn is a switch; a proxy's process replaces itself, which its clients outlive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polarless.control.decisions import Renew, Stop
from polarless.control.membership import HUNG, SERVING, STARTING
from polarless.wire.control import COMPUTE, MEMORY, PROXY, RO, RW, STORAGE

if TYPE_CHECKING:
    from polarless.control.membership import Member
    from polarless.control.reconcile import Picture

# What a reader runs when it is told to leave may take so long; then a proxy runs it elsewhere.
DRAIN_S: Final = 1.0
# Order of a rolling restart: what others depend on least comes first.
ROLLING: Final = (COMPUTE, MEMORY, STORAGE, PROXY)
# A proxy that has not replaced itself by then is left as it is.
RENEW_S: Final = 15.0


def reconcile_shape(picture: Picture, now: float) -> None:
    """Bring the number of compute nodes to what is wanted."""
    members = picture.members
    for name, since in list(picture.leaving.items()):
        member = members[name]
        if member.kind != COMPUTE:
            continue
        if member.role == RW:
            # It was promoted meanwhile, and is needed.
            del picture.leaving[name]
        elif not member.has_process:
            del picture.leaving[name]
            del members.members[name]
            picture.record("left", name, "has left")
        elif member.state in (SERVING, HUNG) and now - since > DRAIN_S:
            member.on("stop", now)
            picture.out.append(Stop(name))
    if picture.asleep:
        return
    wanted = 1 + picture.ro_wanted
    staying = [m for m in members.of_kind(COMPUTE) if m.name not in picture.leaving]
    while len(staying) < wanted:
        staying.append(members.add(_free_name(picture), RO))
        picture.record("joins", staying[-1].name, f"as reader {len(staying) - 1} of {wanted - 1}")
    if picture.loss is None:
        readers = [m for m in staying if m.role == RO]
        readers.sort(key=lambda m: (m.state == SERVING, -_number(m.name)))
        for member in readers[: len(staying) - wanted]:
            picture.leaving[member.name] = now
            picture.record("leaves", member.name, "takes no new work, and is then stopped")


def sleep(picture: Picture, reason: str, now: float) -> None:
    """Release all compute."""
    picture.asleep = True
    picture.rolling.clear()
    picture.record("asleep", COMPUTE, f"all compute is released: {reason}")
    for member in picture.members.of_kind(COMPUTE):
        if member.state in (SERVING, HUNG, STARTING):
            member.on("stop", now)
            picture.out.append(Stop(member.name))


def wake(picture: Picture, reason: str, now: float) -> None:
    """Start the writer; readers follow."""
    picture.asleep = False
    picture.loss = None
    picture.lost_writer("", reason, now, kind="awake")
    for member in picture.members.of_kind(COMPUTE):
        member.start_at = now
        member.failures = 0


def idle_since(picture: Picture, now: float) -> None:
    """Look whether anybody uses the cluster; sleep when nobody did for long enough."""
    timeout_s = picture.idle_timeout_s
    proxies = picture.members.of_kind(PROXY)
    writer = picture.members.writer()
    if (
        not timeout_s
        or picture.asleep
        or picture.loss is not None
        or writer is None
        or not proxies
        or any(member.state != SERVING for member in [writer, *proxies])
        or any(member.fields.get("sessions", 1) for member in proxies)
        or any(
            member.fields.get("clients")
            for member in picture.members.of_kind(COMPUTE)
            if member.state == SERVING
        )
    ):
        picture.used_at = now
    elif now - picture.used_at > timeout_s:
        sleep(picture, f"no client for {timeout_s:g} s", now)


def begin_rolling(picture: Picture, role: str | None) -> list[str]:
    """Whose turn will come, in order. ``role``: a role, a kind or a name; None is everybody."""
    order: list[str] = []
    for kind in ROLLING:
        of_kind = picture.members.of_kind(kind)
        # The writer and the home last among theirs: whoever takes over has been restarted then.
        of_kind.sort(key=lambda m: m.role not in (RO, MEMORY))
        order += [
            m.name for m in of_kind
            if (role is None or role in (m.role, m.kind, m.name)) and m.name not in picture.leaving
        ]  # fmt: skip
    picture.rolling, picture.rolling_order = list(order), order
    picture.record("rolling", "control", "restarts in turn: " + ", ".join(order))
    return order


def next_rolling(picture: Picture, now: float) -> str | None:
    """Stop the next one if all serve; the name of a writer, whose turn is a switch."""
    if picture.renewing is not None:
        _look_at_renewed(picture, now)
    if not picture.rolling or not all_well(picture):
        return None
    name = picture.rolling.pop(0)
    if name not in picture.members or name in picture.leaving:
        return None
    member = picture.members[name]
    picture.record("restart", name, "its turn in the rolling restart")
    if member.role == RW:
        return name
    if member.kind == PROXY:
        picture.renewing = (name, _generation(member), now)
        picture.out.append(Renew(name))
        return None
    member.on("stop", now)
    picture.out.append(Stop(name))
    return None


def _look_at_renewed(picture: Picture, now: float) -> None:
    assert picture.renewing is not None
    name, generation, since = picture.renewing
    member = picture.members.members.get(name)
    took_s = now - since
    if member is not None and member.has_process and _generation(member) == generation:
        if took_s < RENEW_S:
            return
        picture.record("kept", name, f"did not replace itself within {RENEW_S:.0f} s")
    elif member is not None and member.has_process:
        picture.record("renewed", name, f"has replaced its process within {took_s:.2f} s")
    picture.renewing = None


def _generation(member: Member) -> int:
    generation: int = member.fields.get("generation", 0)
    return generation


def all_well(picture: Picture) -> bool:
    """Whether everybody serves and nothing is under way."""
    if picture.loss is not None or picture.promotion is not None or picture.taking_home is not None:
        return False
    if picture.renewing is not None:
        return False
    members = picture.members.members.values()
    if any(m.state != SERVING or not m.fields for m in members if m.name not in picture.leaving):
        return False
    home_epoch = picture.home_epoch
    return all(
        picture.attached.get(m.name) == home_epoch for m in members if m.role == MEMORY
    ) and all(m.home_epoch == home_epoch for m in members if m.kind == COMPUTE)


def _free_name(picture: Picture) -> str:
    number = 1
    while f"{COMPUTE}-{number}" in picture.members:
        number += 1
    return f"{COMPUTE}-{number}"


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
