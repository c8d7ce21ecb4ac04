"""Keeps control alive: starts it, and starts it again when it was killed or crashed.

Two small processes watch each other. This one holds the data directory's lock and hands it on to
the control process, which in turn starts another of these if it ends (`--adopt`). Control says that
it ended on purpose by clearing its pid in ``DATA/control.json``.

It also is the reaper (PR_SET_CHILD_SUBREAPER) of the nodes whose control was killed, so that no
zombie stays behind where init does not collect them.

If every node ended together with control there is nothing to guard, and it ends too: somebody
killed the whole cluster, and will start it again or not.

Nothing but the standard library and no event loop: it has to be small and cannot fail in many ways.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from polarless.control.offline import running
from polarless.net.datadir import DataDirectory
from polarless.net.processes import Machine, ProcessId, is_alive, send_signal
from polarless.wire.control import EXIT_AGAIN

log = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER: Final = 36
# So many quick ends in a row are not an accident.
QUICK_ENDS_MAX: Final = 10
QUICK_S: Final = 5.0
TOGETHER_S: Final = 0.15
# Control could not start for a reason that it has said; trying again would not help.
EXIT_REFUSED: Final = 4


def watch(
    data: DataDirectory, lock_fd: int, arguments: list[str], adopted: ProcessId | None
) -> int:
    """Watch until control ends on purpose; the exit code."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stopping = False
    control = adopted

    def asked_to_end(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        if control is not None:
            send_signal(control, signal.SIGTERM)

    signal.signal(signal.SIGTERM, asked_to_end)
    signal.signal(signal.SIGINT, asked_to_end)
    quick_ends = 0
    while True:
        started = time.monotonic()
        child: subprocess.Popen[bytes] | None = None
        if control is None:
            child = _start(data, lock_fd, arguments)
            control = _identify(child.pid)
        _wait(control)
        code = child.wait() if child is not None else None
        _reap()
        if data.read("control.json").get("settings"):
            # What was asked for with `up` held for the first start; scaling may have changed it.
            arguments = []
        if code == EXIT_AGAIN and not stopping:
            control = None
            continue
        if stopping or code in (0, EXIT_REFUSED) or _left_on_purpose(data, control):
            return code or 0
        # Whoever kills everything, one after the other, is given the time to do so.
        time.sleep(TOGETHER_S)
        if not running(data, Machine()):
            log.warning("control ended (code %s), and so did every node", code)
            return 1
        quick_ends = quick_ends + 1 if time.monotonic() - started < QUICK_S else 1
        log.warning("control ended (code %s), starting it again", code)
        if quick_ends > QUICK_ENDS_MAX:
            log.error("control keeps ending, giving up")
            return 1
        control = None
        if quick_ends > 1:
            time.sleep(min(2.0, 0.1 * 2**quick_ends))


def command(data: DataDirectory, lock_fd: int, adopted: ProcessId) -> list[str]:
    """How control starts another watcher for itself."""
    return [
        sys.executable, "-P", "-m", "polarless.control", "--watch",
        "--data", str(data.root), "--lock-fd", str(lock_fd),
        "--adopt", f"{adopted.pid}:{adopted.start}",
    ]  # fmt: skip


def _start(data: DataDirectory, lock_fd: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable, "-P", "-m", "polarless.control",
            "--data", str(data.root), "--lock-fd", str(lock_fd), *arguments,
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=(lock_fd,),
    )  # fmt: skip


def _identify(pid: int) -> ProcessId:
    # It is our child and not reaped, so its entry is there even if it has ended.
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return ProcessId(pid, int(stat[stat.rindex(b")") + 2 :].split()[19]))


def _wait(process: ProcessId) -> None:
    """Block until the process has ended, collecting orphans meanwhile."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while is_alive(process) and not poll.poll(1000):
            _reap(but=process.pid)
    finally:
        os.close(pidfd)


def _reap(but: int = 0) -> None:
    """Collect children that ended, orphans of a killed control; not the one that is waited for."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == but:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(found.si_pid, os.WNOHANG)


def _left_on_purpose(data: DataDirectory, control: ProcessId) -> bool:
    return bool(data.read("control.json").get("pid") != control.pid)
