"""How many memory nodes there are, and how much each lends. A core, beside `elastic`.

Each lends the same share of the pool. More is asked for at once. A node that is to lend less is
emptied by the home in small steps, and one that is to leave lends nothing first; the home stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polarless.control.decisions import Detach, Lend, Lent, Stop
from polarless.control.membership import HUNG, SERVING
from polarless.wire.control import HOME, MEMORY

if TYPE_CHECKING:
    from polarless.control.membership import Member
    from polarless.control.reconcile import Picture

# One that cannot be emptied for so long leaves with what it holds: storage has it as well.
LEAVE_S: Final = 20.0
# What was refused is asked for again after this.
AGAIN_S: Final = 1.0


def share_mb(picture: Picture) -> int:
    """What each memory node lends."""
    return max(1, picture.pool_mb // max(1, picture.memory_wanted))


def reconcile_memory(picture: Picture, now: float) -> None:
    """Bring the memory nodes and what they lend to what is wanted."""
    if not picture.pool_mb:
        return
    members = picture.members
    _reconcile_leaving(picture, now)
    staying = [m for m in members.of_kind(MEMORY) if m.name not in picture.leaving]
    while len(staying) < picture.memory_wanted:
        staying.append(members.add(_free_name(picture), MEMORY))
        picture.record("joins", staying[-1].name, "lends memory to the pool")
    home = members.home()
    if home is None or home.state != SERVING or picture.taking_home is not None:
        return
    spare = [m for m in staying if m.role == MEMORY]
    spare.sort(key=lambda m: (m.state == SERVING, -int(m.name.rpartition("-")[2])))
    for member in spare[: max(0, len(staying) - picture.memory_wanted)]:
        picture.leaving[member.name] = now
        picture.record("leaves", member.name, "lends nothing from now on, and is then stopped")
    for member in members.of_kind(MEMORY):
        wanted_mb = 0 if member.name in picture.leaving else share_mb(picture)
        if (
            _is_used(picture, member)
            and picture.lent.get(member.name) != wanted_mb
            and (member.name, "lend") not in picture.asked
            and now >= picture.lend_at.get(member.name, 0.0)
        ):
            picture.asked.add((member.name, "lend"))
            picture.out.append(Lend(member.name, wanted_mb))


def lent(picture: Picture, event: Lent, now: float) -> None:
    """A memory node lends what it was asked for, or could not."""
    picture.asked.discard((event.name, "lend"))
    if event.error:
        picture.lend_at[event.name] = now + AGAIN_S
        picture.record("lend-refused", event.name, event.error)
    elif event.name in picture.members and picture.members[event.name].is_live:
        picture.lent[event.name] = event.memory_mb
        picture.record("lends", event.name, f"{event.memory_mb} MiB", memory_mb=event.memory_mb)


def _reconcile_leaving(picture: Picture, now: float) -> None:
    members = picture.members
    for name, since in list(picture.leaving.items()):
        member = members[name]
        if member.kind != MEMORY:
            continue
        if member.role == HOME:
            # The one before it is gone. Another will leave, if one still has to.
            del picture.leaving[name]
        elif not member.has_process:
            del picture.leaving[name]
            del members.members[name]
            picture.lent.pop(name, None)
            picture.attached.pop(name, None)
            picture.record("left", name, "has left")
        elif member.state in (SERVING, HUNG) and (
            picture.lent.get(name) == 0 or now - since > LEAVE_S
        ):
            if picture.attached.pop(name, None) is not None:
                picture.out.append(Detach(name))
            member.on("stop", now)
            picture.out.append(Stop(name))


def _is_used(picture: Picture, member: Member) -> bool:
    """Whether the home knows the node and has its slots."""
    if member.state != SERVING:
        return False
    return member.role == HOME or picture.attached.get(member.name) == picture.home_epoch


def _free_name(picture: Picture) -> str:
    number = 1
    while f"{MEMORY}-{number}" in picture.members:
        number += 1
    return f"{MEMORY}-{number}"
