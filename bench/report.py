"""Tables for people, JSON for programs, a plot for those who would rather look."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.shapes import Curve, Result

# Tables are wide; where nobody's window limits them, a row is a line.
out = Console(width=None if sys.stdout.isatty() else 240)


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
    """Draw the curves if there are any; else ratios as bars around 1, else values as they came."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure = _curves(plt, result) if result.curves else _rows(plt, result)
    folder.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    path = folder / f"{result.name}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _curves(plt: Any, result: Result) -> Any:
    panels: dict[str, list[Curve]] = {}
    for curve in result.curves:
        panels.setdefault(curve.panel, []).append(curve)
    figure, all_axes = plt.subplots(
        len(panels), 1, figsize=(8, 1 + 2.6 * len(panels)), squeeze=False
    )
    for axes, (panel, curves) in zip(all_axes[:, 0], panels.items(), strict=True):
        for curve in curves:
            marker = "o" if len(curve.x) < 30 else ""
            axes.plot(curve.x, curve.y, marker=marker, markersize=3, label=curve.name)
        if any(curve.log_x for curve in curves):
            axes.set_xscale("log", base=2 if max(curves[0].x) < 10_000 else 10)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(curves[0].x_label)
        axes.set_ylabel(panel)
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.suptitle(result.name)
    return figure


def _rows(plt: Any, result: Result) -> Any:
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
    return figure
