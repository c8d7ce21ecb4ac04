"""What a benchmark gives: rows of paired measurements, and where they were made."""

from __future__ import annotations

import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Told of progress: what is being done, and how much of it is over (0 to 1).
Tell = Callable[[str, float], None]


@dataclass(slots=True)
class Row:
    """One measure. ``ours`` and ``theirs`` are the values of each pair, in ``unit``."""

    name: str
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio_median(self) -> float | None:
        """Median over the pairs of ours by theirs; None if there is nothing to compare with."""
        pairs = [a / b for a, b in zip(self.ours, self.theirs, strict=False) if b]
        return round(statistics.median(pairs), 3) if pairs else None

    @property
    def median(self) -> float:
        """Median of ours."""
        return statistics.median(self.ours)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "ratio_median": self.ratio_median, "median": self.median}


@dataclass(slots=True)
class Curve:
    """One line of a plot: ``y`` over ``x``; curves with the same ``panel`` share their axes."""

    name: str
    panel: str
    x_label: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    log_x: bool = False

    def add(self, x: float, y: float) -> None:
        """One more point."""
        self.x.append(round(x, 4))
        self.y.append(round(y, 4))


@dataclass(slots=True)
class Result:
    """All rows of one run, and the curves that its plot shows."""

    name: str
    rows: list[Row]
    settings: dict[str, Any]
    curves: list[Curve] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain values, with commit and machine."""
        return {
            "name": self.name,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "settings": self.settings,
            "rows": [row.to_json() for row in self.rows],
            "curves": [asdict(curve) for curve in self.curves],
        }


def commit() -> str:
    """The checkout's commit, or "unknown"."""
    where = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    import os

    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
