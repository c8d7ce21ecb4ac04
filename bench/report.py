"""Tables for people, JSON for programs, a plot for those who would rather look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.shapes import Result

out = Console()


def table(result: Result, earlier: dict[str, Any] | None) -> None:
    """Print the rows, beside those of an earlier run."""
    shown = Table(title=f"{result.name}  {result.settings}", title_justify="left", box=None)
    for column in ("measure", "unit", "median", "worst pair", "ratio", "earlier", "notes"):
        shown.add_column(column)
    before = {row["name"]: row for row in (earlier or {}).get("rows", ())}
    for row in result.rows:
        ratio = row.ratio_median
        pairs = [a / b for a, b in zip(row.ours, row.theirs, strict=False) if b]
        old = before.get(row.name, {})
        was = old.get("ratio_median") if ratio is not None else old.get("median")
        shown.add_row(
            row.name,
            row.unit,
            f"{row.median:,.1f}" if row.ours else "-",
            f"{min(pairs):.2f}" if pairs else "-",
            f"{ratio:.2f}" if ratio is not None else "-",
            f"{was:,.2f}" if was is not None else "-",
            ", ".join(f"{key}: {value}" for key, value in row.notes.items()),
        )
    out.print(shown)


def as_json(result: Result) -> None:
    """Print one JSON object."""
    print(json.dumps(result.to_json(), indent=1))


def keep(result: Result, folder: Path) -> Path:
    """Write the JSON file of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    path.write_text(json.dumps(result.to_json(), indent=1) + "\n")
    return path


def plot(result: Result, folder: Path) -> Path:
    """Draw the rows: ratios as bars around 1, else the values as they came."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(result.rows) + 1.5))
    rows = result.rows[::-1]
    names = [row.name for row in rows]
    if any(row.theirs for row in rows):
        axes.barh(names, [row.ratio_median or 0 for row in rows])
        axes.axvline(1.0, color="black", linewidth=1)
        axes.set_xlabel("ratio to the other, median of the pairs (more is better)")
    else:
        axes.boxplot([row.ours for row in rows], vert=False, tick_labels=names, whis=(0, 100))
        axes.set_xlabel(result.rows[0].unit)
    axes.set_title(result.name)
    figure.tight_layout()
    path = folder / f"{result.name}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
