"""What came of a seed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What happened."""

    seed: int
    trace: list[str] = field(default_factory=list)
    commits: int = 0
    transfers: int = 0
    audits: int = 0
    # How many times as long clients rest: what they do late in a long fault shows little.
    pace: float = 1.0
    # What it took of a processor, on this machine.
    cpu_s: float = 0.0
    # Clients may have been told so: 53100 and 08007.
    disk_was_full: bool = False
    problem: str = ""
    # It did not end, so it says nothing of what was looked for.
    gave_up: bool = False
