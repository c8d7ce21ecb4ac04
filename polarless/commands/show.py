"""Tables for people. Whoever wants to compute with it takes ``--json``."""

from __future__ import annotations

import json
import sys
from typing import Any, Final, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polarless.errors import PolarlessError

out: Final = Console(highlight=False, soft_wrap=True)
err: Final = Console(stderr=True, highlight=False, soft_wrap=True)

ROLE_STYLES: Final = {
    "rw": "bold magenta", "ro": "cyan", "home": "bold yellow", "memory": "yellow",
    "storage": "blue", "control": "white",
}  # fmt: skip
STATE_STYLES: Final = {
    "serving": "green", "running": "green", "starting": "yellow", "promoting": "yellow",
    "rebuilding": "yellow", "degraded": "yellow", "no control": "yellow",
}  # fmt: skip

EXIT_FAILED: Final = 1
EXIT_NOT_RUNNING: Final = 3
EXIT_IN_USE: Final = 4
EXIT_BY_SQLSTATE: Final = {"58P01": EXIT_NOT_RUNNING, "55006": EXIT_IN_USE}


def as_json(values: Any) -> None:
    """One JSON value on standard output."""
    print(json.dumps(values, indent=2, ensure_ascii=False, default=str))


def fail(error: PolarlessError) -> NoReturn:
    """One line, a hint, and the exit code that says what kind of error it was."""
    err.print(Text.assemble(("error: ", "bold red"), error.message))
    if error.hint:
        err.print(Text.assemble(("hint:  ", "yellow"), error.hint))
    sys.exit(EXIT_BY_SQLSTATE.get(error.sqlstate, EXIT_FAILED))


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, STATE_STYLES.get(name, "red"))


def status(values: dict[str, Any], *, event_count: int = 8) -> None:
    """The nodes, and the last decisions."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("node", "role", "state", "pid", "epoch", "delay", "sql address"):
        table.add_column(column, no_wrap=True)
    for node in values["nodes"]:
        table.add_row(
            node["name"],
            Text(node["role"], ROLE_STYLES.get(node["role"], "")),
            state(node["state"]),
            str(node["pid"] or "-"),
            str(node["epoch"] or "-"),
            f"{node['loop']['worst_busy_ms']:.0f}" if node.get("loop") else "-",
            node.get("sql_url", "").removeprefix("postgresql://").partition("/")[0],
        )
    out.print(table)
    out.print()
    out.print(Text.assemble("state  ", state(values["state"]), f"   epoch {values['epoch']}"))
    if values.get("note"):
        out.print(Text(f"note   {values['note']}", "yellow"))
    out.print(Text.assemble("url    ", (values["url"], "bold")))
    if event_count and values["events"]:
        out.print()
        events(values["events"][-event_count:])


def sessions(found: list[dict[str, Any]]) -> None:
    """One line a session."""
    table = Table(box=None, pad_edge=False)
    columns = ("at", "pid", "user", "state", "node", "wait", "query")
    for column in columns:
        table.add_column(column)
    for session in found:
        cells = [session.get(column) for column in columns]
        table.add_row(*(Text("" if cell is None else str(cell)[:60]) for cell in cells))
    out.print(table)


def events(found: list[dict[str, Any]]) -> None:
    """Decisions, one a line."""
    for event in found:
        line = Text.assemble(
            (event["at"][11:23], "dim"), "  ", (f"{event['event']:<16}", "bold"),
            f"{event['node']:<11}", event["text"],
        )  # fmt: skip
        out.print(line)
        steps = event.get("steps")
        if steps:
            shown = "  ".join(f"{name} {value}" for name, value in steps.items())
            out.print(Text(f"{'':14}{shown}", "dim"))


def what_next(values: dict[str, Any], data_flag: str) -> None:
    """What to type now."""
    out.print()
    for command, why in (
        (f'psql "{values["url"]}"', "talk to it; any user and database name will do"),
        (f"polarless status{data_flag}", "who is what, and what was decided"),
        (f"polarless failover{data_flag}", "make a reader the writer"),
        (f"polarless down{data_flag}", "stop everything; the data stays"),
    ):
        out.print(Text.assemble("  ", (f"{command:<58}", "bold green"), ("  " + why, "dim")))


def rows(columns: list[str], found: list[list[Any]], tag: str) -> None:
    """A query's result."""
    if columns:
        table = Table(header_style="bold", show_edge=False, pad_edge=False)
        for column in columns:
            table.add_column(column)
        for row in found:
            cells = (Text("NULL", "dim") if value is None else Text(str(value)) for value in row)
            table.add_row(*cells)
        out.print(table)
    out.print(Text(tag, "dim"))


def _verdict(good: bool, text: str) -> Text:
    return Text(text) if good else Text(f"NOT: {text}", "bold red")


def demo(report: dict[str, Any], *, good: bool) -> None:
    """What the demo found."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    lost = Text(str(report["lost"]), "bold green" if report["lost"] == 0 else "bold red")
    lost.append(f" of {report['acked']:,} acknowledged commits, each looked for by its number")
    hits, reads = report["pool_hits_after"], report["storage_reads_after"]
    doubt = f"{report['in_doubt']} under way at the kill, {report['in_doubt_there']} of them there"
    first = f"{report['failover_s'] * 1000:.0f} ms, on {report['new_writer']}"
    before, after = f"{report['tps_before']:,.0f}", f"{report['tps_after']:,.0f}"
    pages = f"{report['cache_pages_after']:,} in the cache, {hits:,} came from the pool"
    for name, value in (
        ("lost", lost),
        ("in doubt", f"{doubt}: their clients were not told"),
        ("kill to first new commit", first),
        ("transactions a second", f"{before} before, {after} after ({report['load']})"),
        ("pages after the promotion", f"{pages}, {reads:,} from storage"),
        ("readers", _verdict(report["readers_current"], "every one saw the last commit")),
        ("pgbench's sums", _verdict(report["sums_agree"], "agree")),
        ("time", f"{report['seconds']:.0f} s"),
    ):
        table.add_row(name, value)
    out.print(table)
    out.print(Text("all is well" if good else "something is wrong", "green" if good else "red"))
