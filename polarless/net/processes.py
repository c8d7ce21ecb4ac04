"""Processes of this machine: start them, know them again, see them end, end them.

* A process is its pid *and* its start time: a pid that was given to somebody else meanwhile is
  another process, and is never signalled.
* `Machine.watch` sees the end of any process, our child or not, at once: it waits on a pidfd.
* A zombie counts as ended.

Standard output and error of a process go to files, not to pipes: whoever started it may be killed
without it noticing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

# Below the range from which Linux takes the ports of outgoing connections, so that a port that was
# free a moment ago is not taken by one of those.
PORTS: Final = range(20_000, 32_000)


class ProcessId(NamedTuple):
    """A process, for ever: ``start`` is when it started, in clock ticks after boot."""

    pid: int
    start: int


def identify(pid: int) -> ProcessId | None:
    """The living process with this pid, if there is one."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else ProcessId(pid, stat[1])


def is_alive(process: ProcessId) -> bool:
    """Whether that very process still runs (or is stopped)."""
    return process.pid > 0 and identify(process.pid) == process


def is_stopped(process: ProcessId) -> bool:
    """Whether it was stopped by SIGSTOP."""
    stat = _stat(process.pid)
    return stat is not None and stat[1] == process.start and stat[0] == "T"


def send_signal(process: ProcessId, number: int) -> bool:
    """Signal that very process; False if it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The descriptor pins the process: after this check the pid cannot become another one.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def cpu_seconds(process: ProcessId) -> float:
    """Processor time that a process has used; 0 if it has ended."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0.0
    fields = text[text.rindex(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_ended(processes: Iterable[ProcessId], deadline_s: float) -> list[ProcessId]:
    """Block until all have ended or the time is over; those that have not."""
    poll = select.poll()
    waiting: dict[int, ProcessId] = {}
    try:
        for process in processes:
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(process.pid)
                waiting[pidfd] = process
                poll.register(pidfd, select.POLLIN)
        end = time.monotonic() + deadline_s
        while waiting and (left := end - time.monotonic()) > 0:
            # In slices: the pidfd of a pid that is another process by now tells nothing.
            poll.poll(min(left, 0.2) * 1000)
            for pidfd in [fd for fd, process in waiting.items() if not is_alive(process)]:
                poll.unregister(pidfd)
                os.close(pidfd)
                del waiting[pidfd]
        return list(waiting.values())
    finally:
        for pidfd in waiting:
            os.close(pidfd)


def stop_all(processes: Sequence[ProcessId], grace_s: float) -> list[ProcessId]:
    """SIGTERM (and SIGCONT, for stopped ones), wait, SIGKILL the rest; those that had to be."""
    for process in processes:
        send_signal(process, signal.SIGTERM)
        send_signal(process, signal.SIGCONT)
    stubborn = wait_ended(processes, grace_s)
    for process in stubborn:
        send_signal(process, signal.SIGKILL)
    wait_ended(stubborn, 5.0)
    return stubborn


def is_free(port: int) -> bool:
    """Whether nobody listens on a TCP port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A TCP port of loopback that nobody listens on, and none of those."""
    for _ in range(200):
        port = random.choice(PORTS)
        if port not in taken and is_free(port):
            return port
    raise OSError("no free port on loopback")


def find_processes(argument_prefix: str) -> dict[str, ProcessId]:
    """Processes with an argument that starts so, by that argument."""
    found: dict[str, ProcessId] = {}
    wanted = argument_prefix.encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue
        for argument in arguments:
            if argument.startswith(wanted) and (process := identify(int(entry))):
                found[argument.decode(errors="replace")] = process
    return found


class Machine:
    """Starts and watches processes; one per event loop."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def spawn(
        self,
        arguments: Sequence[str],
        *,
        output: Path,
        errors: Path,
        inherit: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        is_told: bool = False,
    ) -> ProcessId:
        """Start a process in a session of its own. ``output`` begins empty, ``errors`` grows.

        ``is_told``: its standard input is a pipe, for `tell`; it ends if nobody is left to tell it.
        """
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        err = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE if is_told else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=tuple(inherit),
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        finally:
            os.close(out)
            os.close(err)
        self._children[child.pid] = child
        # Not reaped yet, so it can be identified even if it has ended already.
        stat = _stat(child.pid)
        return ProcessId(child.pid, stat[1] if stat else 0)

    def tell(self, process: ProcessId, line: bytes) -> None:
        """Write one line to a process that waits for it. One that has ended hears nothing."""
        stdin = self._children[process.pid].stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError), stdin:
            stdin.write(line + b"\n")

    def end_told(self, process: ProcessId) -> None:
        """End a process that was told nothing, and wait for it."""
        child = self._children.pop(process.pid)
        child.kill()
        child.wait()
        if child.stdin is not None:
            child.stdin.close()

    def watch(self, process: ProcessId, ended: Callable[[int | None], object]) -> None:
        """Call ``ended(return code)`` once it has ended; None if it was not our child."""
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            loop.call_soon(ended, self._code(process))
            return
        if not is_alive(process) and process.pid not in self._children:
            os.close(pidfd)
            loop.call_soon(ended, None)
            return

        def readable() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            ended(self._code(process))

        loop.add_reader(pidfd, readable)

    def _code(self, process: ProcessId) -> int | None:
        child = self._children.pop(process.pid, None)
        return None if child is None else child.wait()

    # What a flow may not do itself.

    identify = staticmethod(identify)
    cpu_seconds = staticmethod(cpu_seconds)
    is_alive = staticmethod(is_alive)
    is_stopped = staticmethod(is_stopped)
    signal = staticmethod(send_signal)
    free_port = staticmethod(free_port)
    is_free = staticmethod(is_free)
    stop_all = staticmethod(stop_all)
    find = staticmethod(find_processes)


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time from /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything, so count from its last parenthesis.
    after = text[text.rindex(b")") + 2 :].split()
    return after[0].decode(), int(after[19])
