"""A data directory: what is in it, who uses it, what is remembered of a cluster between processes.

    DATA/polarless.json      format and cluster id: what makes it a data directory
    DATA/lock                held (flock) by control as long as it lives
    DATA/control.json        settings, epochs, the URL's port; where control's HTTP is, its token
    DATA/events.jsonl        what was decided, one JSON object a line, bounded
    DATA/run/NODE.json       a RunRecord        DATA/run/NODE.config.json  what the node was told
    DATA/run/NODE.ready      its standard output   DATA/run/NODE.sock      offers the URL's socket
    DATA/logs/NODE.log       its standard error
    DATA/storage/ ...        a node's own

Files are 0600 and directories 0700. Writes replace the file in one step, so that a reader never
sees half of it. They survive the death of the writing process; only the identity survives a power
cut for sure, and the rest may then be old: an epoch that is too old is refused by storage.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final

from polarless.errors import CallerMistake
from polarless.net.logs import rotate
from polarless.wire.control import RunRecord, parse_record

FORMAT: Final = 1
IDENTITY: Final = "polarless.json"
SHM: Final = Path("/dev/shm")


class DataDirectory:
    """Paths and small files of one data directory. `open_or_create` makes it usable."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.run = self.root / "run"
        self.logs = self.root / "logs"
        self.events_path = self.root / "events.jsonl"

    # Identity.

    def exists(self) -> bool:
        """Whether it is a data directory of ours."""
        return (self.root / IDENTITY).is_file()

    def cluster(self) -> bytes:
        """The cluster's id. Raises CallerMistake if this is no data directory of ours."""
        try:
            identity = json.loads((self.root / IDENTITY).read_bytes())
            found = int(identity["format"])
            cluster = bytes.fromhex(identity["cluster"])
        except FileNotFoundError:
            raise CallerMistake(
                f"there is no polarless cluster in {self.root}",
                hint="start one with `polarless up`, or name its directory with --data",
                sqlstate="58P01",
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CallerMistake(f"{self.root / IDENTITY} cannot be read: {error!r}") from None
        if found != FORMAT:
            raise CallerMistake(
                f"{self.root} has format {found}, this polarless reads format {FORMAT}",
                hint="use the version of polarless that made it",
            )
        return cluster

    def open_or_create(self) -> bytes:
        """Make the directory if need be; the cluster's id. Refuses a directory of others."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.exists():
                others = [entry.name for entry in self.root.iterdir() if entry.name != "lock"]
                if others:
                    raise CallerMistake(
                        f"{self.root} is not empty and holds no polarless cluster "
                        f"(there is {min(others)!r})",
                        hint="name another directory with --data",
                        sqlstate="55006",
                    )
                identity = {"format": FORMAT, "cluster": os.urandom(16).hex()}
                self.write(IDENTITY, identity, durable=True)
            for folder in (self.run, self.logs):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CallerMistake(
                f"{self.root} cannot be used: {error.strerror}",
                hint="it must be a directory that this user may write to",
                sqlstate="55006",
            ) from None
        return self.cluster()

    # The lock.

    def lock(self) -> int:
        """Take the lock; the descriptor that holds it, for children to inherit.

        Raises CallerMistake if somebody has it.
        """
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise CallerMistake(
                f"{self.root} is in use by a running cluster",
                hint=f"see `polarless status --data {self.root}`, or stop it with `polarless down`",
                sqlstate="55006",
            ) from None
        return fd

    def is_locked(self) -> bool:
        """Whether a control lives here."""
        try:
            os.close(self.lock())
        except CallerMistake:
            return True
        except FileNotFoundError:
            return False
        return False

    # Small files.

    def read(self, name: str) -> dict[str, Any]:
        """The JSON object in a file of the directory; empty if there is none."""
        try:
            values = json.loads((self.root / name).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def write(self, name: str, values: dict[str, Any], *, durable: bool = False) -> None:
        """Replace a file by a JSON object in one step."""
        path = self.root / name
        temporary = path.with_name(path.name + ".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(values, file, indent=1)
            if durable:
                file.flush()
                os.fsync(fd)
        temporary.replace(path)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            (self.root / name).unlink()

    def clear(self, name: str) -> None:
        """Make a file empty."""
        os.close(os.open(self.root / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))

    def text(self, name: str) -> str:
        """A file as text; empty if there is none."""
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    # Processes.

    def records(self) -> list[RunRecord]:
        """What is remembered of the nodes' processes, by name."""
        if not self.run.is_dir():
            return []
        paths = sorted(path for path in self.run.glob("*.json") if "." not in path.stem)
        found = (parse_record(path.read_bytes()) for path in paths)
        return [record for record in found if record is not None]

    def write_record(self, record: RunRecord) -> None:
        """Remember a node's process."""
        path = self.run / f"{record.name}.json"
        temporary = path.with_suffix(".new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(record.to_json())
        temporary.replace(path)

    def forget_records(self) -> None:
        """All nodes have ended: nothing is running here."""
        for path in [*self.run.glob("*.json"), *self.run.glob("*.sock"), *self.run.glob("*.ready")]:
            path.unlink(missing_ok=True)

    # Events.

    def append_event(self, event: dict[str, Any], bytes_max: int) -> None:
        """Write down a decision; the file keeps about the last ``bytes_max``."""
        rotate(self.events_path, bytes_max)
        fd = os.open(self.events_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, (json.dumps(event, ensure_ascii=False) + "\n").encode())
        finally:
            os.close(fd)

    def events(self, count: int) -> list[dict[str, Any]]:
        """The last decisions, oldest first."""
        lines = self.text("events.jsonl").splitlines()
        if len(lines) < count:
            lines = self.text("events.jsonl.1").splitlines() + lines
        found = []
        for line in lines[-count:]:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


def shared_memory_names(cluster: bytes, node: str = "") -> list[str]:
    """Regions of a cluster, or of one of its nodes, that exist on this machine."""
    pattern = f"polarless-{cluster.hex()[:8]}-{node + '-' if node else ''}*"
    return sorted(path.name for path in SHM.glob(pattern))


def remove_shared_memory(names: list[str]) -> None:
    """Remove what a killed node left. Whoever has it mapped keeps it until it unmaps."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            (SHM / name).unlink()


def clear_words(name: str, first_word: int) -> None:
    """Zero a region from a 64-bit word on: a dead home's admission words, before it is removed."""
    with contextlib.suppress(FileNotFoundError), (SHM / name).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(first_word * 8)
        file.write(bytes(max(0, size - first_word * 8)))
