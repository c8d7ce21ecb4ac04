"""A control that came back takes over the picture that the running nodes give of themselves.

The writer is the compute node that says so under the highest epoch; of the homes likewise. A node
that does not answer keeps the role it had, as hung, and what is done about it is decided as always.
"""

from __future__ import annotations

from polarless.control.membership import ENDED, HUNG, SERVING, STARTING
from polarless.control.reconcile import Picture
from polarless.wire.control import COMPUTE, HOME, MEMORY, RO, RW


def settle(picture: Picture, now: float) -> None:
    """Take over the picture that the running nodes give of themselves."""
    picture.settling = False
    computes = picture.members.of_kind(COMPUTE)
    memories = picture.members.of_kind(MEMORY)
    for member in computes + memories:
        picture.epoch = max(picture.epoch, int(member.fields.get("epoch") or 0))
        picture.home_epoch = max(picture.home_epoch, int(member.fields.get("home_epoch") or 0))
    writers = [m for m in computes if m.is_live and m.fields.get("role") == RW]
    writer = max(writers, key=lambda m: int(m.fields.get("epoch") or 0), default=None)
    if writer is None:
        # One that does not answer may still be the writer; what is done is for reconcile.
        writer = next((m for m in picture.members.of_role(RW) if m.has_process), None)
    former = next(iter(picture.members.of_role(RW)), None)
    for member in computes:
        if member.state == STARTING:
            # It has a process and no voice.
            member.on("ready", now)
            member.on("silent", now)
        if member is not writer and member.state in (SERVING, HUNG) and member in writers:
            member.on("supersede", now)
        member.role = RW if member is writer else RO
    if writer is not None:
        picture.loss = None
    else:
        picture.lost_writer(former.name if former else "", "was gone when control came back", now)
    homes = [m for m in memories if m.is_live and m.fields.get("role") == HOME]
    home = max(homes, key=lambda m: int(m.fields.get("home_epoch") or 0), default=None)
    for member in [*memories, picture.members.storage()]:
        if member.state == STARTING:
            member.on("ready", now)
            member.on("silent", now)
    known = picture.members.home()
    if home is not None:
        for member in memories:
            member.role = HOME if member is home else MEMORY
            if member.is_live and member is not home:
                picture.attached[member.name] = picture.home_epoch
        for member in computes:
            member.home_epoch = int(member.fields.get("home_epoch") or 0)
    elif known is not None and known.state == ENDED:
        picture.lost_home(known, now)
