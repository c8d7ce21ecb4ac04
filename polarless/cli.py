"""The ``polarless`` command: reads arguments and prints. What it does is in `polarless.local`.

Exit codes: 0 done; 1 it failed; 2 the arguments are wrong; 3 nothing runs there; 4 the data
directory is in use, or is not ours. Errors are one line and a hint on standard error.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from polarless.errors import CallerMistake, PolarlessError

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A database taken apart: compute, memory and storage as processes of their own.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 nothing runs there, 4 directory in use.",
)

DATA_DEFAULT = Path("polarless-data")
Data = Annotated[
    Path, typer.Option("--data", envvar="POLARLESS_DATA", help="The cluster's data directory.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """No traceback for what a person can do something about."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except PolarlessError as error:
            from polarless.commands import show

            show.fail(error)
        except KeyboardInterrupt:
            sys.exit(130)

    return wrapped


def _data_flag(data: Path) -> str:
    return "" if data == DATA_DEFAULT else f" --data {data}"


@app.command()
@friendly
def up(
    data: Data = DATA_DEFAULT,
    port: Annotated[int | None, typer.Option(help="The URL's port; 0 for a free one.")] = None,
    ro: Annotated[int | None, typer.Option(help="Readers beside the writer (2).")] = None,
    pool_mb: Annotated[int | None, typer.Option(help="Memory of all memory nodes (256).")] = None,
    memory_nodes: Annotated[int | None, typer.Option(help="Memory nodes, at least 2 (2).")] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Page cache of one compute (400).")] = None,
    shared_memory: Annotated[
        bool | None,
        typer.Option("--shared-memory/--no-shared-memory", help="Read the pool by mapping it."),
    ] = None,
    proxies: Annotated[int | None, typer.Option(help="Proxies, 0 for none (1).")] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds without a client until compute is released (0: never)."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it serves.")] = False,
    json: Json = False,
) -> None:
    """Start a cluster. Settings are kept for the next start; without --detach, Ctrl-C stops it."""
    from polarless.commands import show
    from polarless.local import LocalCluster

    cluster = LocalCluster(
        data, port=port, ro=ro, pool_mb=pool_mb, memory_nodes=memory_nodes, cache_mb=cache_mb,
        shared_memory=shared_memory, proxies=proxies, idle_timeout_s=idle_timeout,
    )  # fmt: skip
    with _stopping_by_signal():
        began = time.monotonic()
        if json:
            cluster.start()
        else:
            with show.err.status("starting") as spinner:
                cluster.start(lambda status: spinner.update(_progress(status)))
        seconds = time.monotonic() - began
        status = cluster.status()
        if json:
            show.as_json(status)
        else:
            show.status(status, event_count=0)
            show.what_next(status, _data_flag(data))
            show.out.print(f"\nserves after {seconds:.1f} s", style="dim")
        if detach:
            return
        try:
            if not json:
                show.err.print("Ctrl-C stops the cluster", style="dim")
            cluster.wait_stopped()
        except KeyboardInterrupt:
            show.err.print("stopping", style="dim")
            cluster.stop()


@app.command()
@friendly
def init(
    data: Data = DATA_DEFAULT,
    name: Annotated[
        list[str] | None, typer.Option(help="A further name or address of this host.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the certificate.")] = False,
) -> None:
    """Make the data directory and a certificate for TLS; nodes use it from their next start."""
    from polarless.commands import show
    from polarless.net.datadir import DataDirectory
    from polarless.net.tls import make_certificate

    directory = DataDirectory(data)
    directory.open_or_create()
    certificate = make_certificate(directory.root, name or (), force=force)
    show.out.print(f"certificate  {certificate}", soft_wrap=True)
    show.out.print(f"\nstart with `polarless up{_data_flag(data)}`, then give somebody a password:")
    show.out.print("  CREATE ROLE name SUPERUSER LOGIN PASSWORD '...'")


class _stopping_by_signal:  # noqa: N801
    """SIGTERM does what Ctrl-C does."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)


def _progress(status: dict[str, Any]) -> str:
    serving = [node["name"] for node in status["nodes"] if node["state"] == "serving"]
    return f"starting: {', '.join(serving) or 'control'}"


@app.command()
@friendly
def down(data: Data = DATA_DEFAULT) -> None:
    """Stop every process of a cluster and wait for it. The data stays."""
    from polarless.commands import show
    from polarless.local import LocalCluster

    cluster = LocalCluster(data)
    before = cluster.status()
    if not any(node["pid"] for node in before["nodes"]):
        cluster.stop()
        raise CallerMistake(f"nothing runs in {cluster.data.root}", sqlstate="58P01")
    with show.err.status("stopping"):
        killed = cluster.stop()
    for name in killed:
        show.err.print(f"{name} did not stop in time and was killed", style="yellow")
    show.out.print("stopped")


@app.command()
@friendly
def status(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Who is what, and what was decided. Exits with 3 if nothing runs, with 1 if nothing serves.

    `delay`: the longest time in ms that a node's event loop was busy when a timer should have
    run; --json has the whole histogram.
    """
    from polarless.commands import show
    from polarless.local import LocalCluster

    cluster = LocalCluster(data)
    values = cluster.status()
    loops = cluster.loops()
    for node in values["nodes"]:
        node["loop"] = loops.get(node["name"])
    if json:
        show.as_json(values)
    else:
        show.status(values)
    if values["state"] == "stopped":
        sys.exit(show.EXIT_NOT_RUNNING)
    if values["state"] == "unavailable":
        sys.exit(show.EXIT_FAILED)


@app.command()
@friendly
def failover(
    node: Annotated[str | None, typer.Argument(help="The reader to promote.")] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Make a reader the writer, now. The old writer finishes first and comes back as a reader."""
    from polarless.commands import show

    event = _running(data).failover(node)
    if json:
        show.as_json(event)
    else:
        show.events([event])


@app.command()
@friendly
def switchover(
    node: Annotated[str | None, typer.Argument(help="The reader to promote.")] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Make a reader the writer, as planned: nothing running is lost. The same as `failover`."""
    failover(node, data, json)


@app.command()
@friendly
def scale(
    ro: Annotated[int | None, typer.Option(help="How many readers there are to be.")] = None,
    memory_nodes: Annotated[int | None, typer.Option(help="How many memory nodes.")] = None,
    pool_mb: Annotated[int | None, typer.Option(help="Memory of all memory nodes.")] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Have more or less of something, while serving. Returns when it is so."""
    from polarless.commands import show

    if ro is None and memory_nodes is None and pool_mb is None:
        raise CallerMistake("say what to scale", hint="--ro, --memory-nodes or --pool-mb")
    result = _running(data).scale(ro, memory_nodes=memory_nodes, pool_mb=pool_mb)
    if json:
        show.as_json(result)
    else:
        show.out.print(
            f"{result['ro']} readers, {result['memory_nodes']} memory nodes, "
            f"{result['pool_mb']} MiB, after {result['seconds']:.2f} s"
        )


@app.command()
@friendly
def restart(
    role: Annotated[str | None, typer.Argument(help="A role or a node's name; else all.")] = None,
    rolling: Annotated[bool, typer.Option("--rolling", help="One after the other.")] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Restart every process in turn, control last, while the cluster serves.

    A proxy's process replaces itself and keeps its clients, but for those that use TLS.
    """
    from polarless.commands import show

    if not rolling:
        raise CallerMistake(
            "say --rolling to restart one after the other",
            hint="`polarless down` and `polarless up` restart everything at once",
        )
    with show.err.status("restarting"):
        result = _running(data).rolling_restart(role)
    if json:
        show.as_json(result)
    else:
        names = ", ".join(result["restarted"])
        show.out.print(f"restarted {names} in {result['seconds']:.1f} s")


@app.command()
@friendly
def check(
    node: Annotated[str | None, typer.Argument(help="A compute node; else each of them.")] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Walk every tree as each compute node sees it. Exits with 1 if one is damaged."""
    from polarless.commands import show

    cluster = _running(data)
    names = [node] if node else [n.name for n in cluster.nodes() if n.role in ("rw", "ro")]
    found: dict[str, Any] = {}
    for name in names:
        with show.err.status(f"{name} looks at every page"):
            found[name] = cluster.control.check(name)
    damaged = any(report["findings"] for report in found.values())
    if json:
        show.as_json(found)
    else:
        for name, report in found.items():
            counts = "{trees} trees, {pages} pages, {keys} keys, {versions} versions"
            show.out.print(f"{name}  {counts.format(**report)}")
            for text in report["findings"]:
                show.out.print(f"  damaged: {text}", markup=False)
            for text in report["unchecked"]:
                show.out.print(f"  not checked: {text}", markup=False)
    if damaged:
        raise typer.Exit(1)


@app.command()
@friendly
def autoscale(
    what: Annotated[str, typer.Argument(help="on, off or status.")] = "status",
    ro: Annotated[str, typer.Option(help="Readers, from..to.")] = "0..4",
    pool_mb: Annotated[
        str, typer.Option(help="Memory of all memory nodes, from..to.")
    ] = "64..1024",
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Have readers and pool follow the load. `polarless events` says what was decided, and why."""
    from polarless.commands import show
    from polarless.control.autoscale import Policy, parse_range

    if what not in ("on", "off", "status"):
        raise CallerMistake(f"autoscale {what}?", hint="on, off or status")
    policy = None
    if what == "on":
        try:
            policy = Policy(*parse_range(ro), *parse_range(pool_mb)).to_json()
        except ValueError as error:
            raise CallerMistake(str(error), hint="for example --ro 0..4") from None
    result = _running(data).control.autoscale(policy, change=what != "status")
    if json or not result["on"]:
        show.as_json(result) if json else show.out.print("autoscaling is off")
        return
    limits = result["policy"]
    show.out.print(
        f"{limits['ro_min']} to {limits['ro_max']} readers, "
        f"{limits['pool_mb_min']} to {limits['pool_mb_max']} MiB"
    )
    for name, value in (result["seen"] or {}).items():
        show.out.print(f"  {name:<12} {value:.2f}".rstrip("0").rstrip("."))


@app.command()
@friendly
def sleep(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Release all compute now. The pool stays warm, and the next client wakes the writer."""
    from polarless.commands import show

    result = _running(data).sleep()
    if json:
        show.as_json(result)
    else:
        show.out.print("asleep; the next client wakes it")


@app.command()
@friendly
def sessions(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Every client, where its statement runs, and what it waits for."""
    from polarless.commands import show

    found = _running(data).sessions()
    if json:
        show.as_json(found)
    else:
        show.sessions(found)


@app.command()
@friendly
def sql(
    statement: Annotated[str, typer.Argument(help="One SQL statement.")],
    data: Data = DATA_DEFAULT,
    on: Annotated[str | None, typer.Option(help="A compute node's name or role.")] = None,
    json: Json = False,
) -> None:
    """Run a statement on the writer, or on another node."""
    from polarless.commands import query, show

    cluster = _running(data)
    result = query.run(cluster.sql_url(on) if on else cluster.url, statement)
    if json:
        show.as_json(result._asdict())
    else:
        show.rows(*result)


@app.command()
@friendly
def events(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """What was decided and why, with the time of each step."""
    from polarless.commands import show
    from polarless.local import LocalCluster

    cluster = LocalCluster(data)
    cluster.data.cluster()
    found = cluster.events()
    if json:
        show.as_json(found)
    else:
        show.events(found)


@app.command()
@friendly
def kill(
    node: Annotated[str, typer.Argument(help="A node's name, or a role.")],
    data: Data = DATA_DEFAULT,
    stop: Annotated[bool, typer.Option("--stop", help="SIGSTOP instead of SIGKILL.")] = False,
    cont: Annotated[bool, typer.Option("--cont", help="SIGCONT instead of SIGKILL.")] = False,
) -> None:
    """Do to a process what machines do: kill -9, or stop it and let it go on."""
    from polarless.commands import show

    cluster = _running(data)
    act = cluster.pause if stop else cluster.resume if cont else cluster.kill
    hit = act(node)
    show.out.print(f"{hit.name} ({hit.role}, pid {hit.process.pid})")


@app.command()
@friendly
def logs(
    node: Annotated[str, typer.Argument(help="A node's name, or a role.")],
    data: Data = DATA_DEFAULT,
    lines: Annotated[int, typer.Option("-n", help="How many lines.")] = 40,
) -> None:
    """The last lines of a node's log."""
    cluster = _running(data, or_stopped=True)
    for line in cluster.tail(cluster.node(node).name, lines):
        print(line)


@app.command()
@friendly
def demo(
    data: Annotated[
        Path | None, typer.Option("--data", help="Where to run; by default a folder that goes.")
    ] = None,
    json: Json = False,
) -> None:
    """A cluster, pgbench, kill -9 of the writer, and a report. Exits with 1 if a commit is lost."""
    import asyncio

    from polarless import demo as demos
    from polarless.commands import show
    from polarless.local import LocalCluster

    with _stopping_by_signal():
        cluster = LocalCluster(data, ro=2, memory_nodes=2)
        try:
            with show.err.status("starting a cluster") as spinner:

                def tell(step: str, tps: float | None) -> None:
                    spinner.update(step if tps is None else f"{step}: {tps:,.0f} tps")

                cluster.start(lambda status: spinner.update(_progress(status)))
                report = asyncio.run(demos.run(cluster, tell))
        finally:
            cluster.stop()
    if json:
        show.as_json(report._asdict() | {"good": report.good})
    else:
        show.demo(report._asdict(), good=report.good)
    if not report.good:
        sys.exit(show.EXIT_FAILED)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@friendly
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A benchmark; `--help` behind it lists them.")],
) -> None:
    """Run a benchmark, with the arguments of `python -m bench`."""
    import subprocess

    command = [sys.executable, "-P", "-m", "bench", name, *context.args]
    sys.exit(subprocess.run(command, check=False).returncode)


@app.command()
@friendly
def sim(
    seed: Annotated[int, typer.Option(help="Which one.")],
    trace: Annotated[bool, typer.Option("--trace", help="Print what happened.")] = False,
) -> None:
    """Replay one seed of the simulation; in a checkout of the sources."""
    import subprocess

    import polarless

    root = Path(polarless.__file__).parent.parent
    if not (root / "tests" / "sim").is_dir():
        raise CallerMistake(
            "the simulator comes with the sources, not with the installed package",
            hint="run this in a checkout, with its environment",
        )
    command = [sys.executable, "-m", "tests.sim", "--seed", str(seed)]
    sys.exit(
        subprocess.run(
            [*command, *(["--trace"] if trace else [])], cwd=root, check=False
        ).returncode
    )


@app.command()
@friendly
def version() -> None:
    """The version of polarless."""
    from importlib.metadata import version as version_of

    print(f"polarless {version_of('polarless')}")


def _running(data: Path, *, or_stopped: bool = False) -> Any:
    """The cluster in ``data``. Raises CallerMistake if there is none, or nothing runs."""
    from polarless.local import LocalCluster

    cluster = LocalCluster(data)
    if cluster.status()["state"] == "stopped" and not or_stopped:
        raise CallerMistake(
            f"nothing runs in {cluster.data.root}",
            hint=f"start it with `polarless up{_data_flag(data)}`",
            sqlstate="58P01",
        )
    return cluster


def main() -> None:
    """The console script."""
    app()
