"""What a server without materialised pages does before it serves: apply the log to a checkpoint.

An ablation for the benchmarks: nothing of the product does this.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from polarless.errors import CallerMistake
from polarless.kernel import page, redo
from polarless.kernel.apply import apply
from storage.backends.log_files import LogFiles
from storage.backends.page_lmdb import PageLmdb
from storage.log.reader import LogReader
from storage.log.recovery import examine
from storage.log.segment import cluster_of
from storage.pages.folded import decode_folded


def replay(checkpoint: Path, storage: Path) -> tuple[int, int, float]:
    """Apply a log to the pages of an earlier copy of its storage folder, by one process.

    Gives (bytes of log, pages changed, seconds). Raises CorruptData if they do not fit.
    """
    store = PageLmdb(checkpoint / "pages", read_only=True)
    device = LogFiles(storage / "log", create=False, read_only=True)
    try:
        since = decode_folded(store.read_state(), None).lsn
        cluster = cluster_of(device.read_state() or b"")
        if cluster is None:
            raise CallerMistake(f"{storage / 'log'} has no state record")
        examined = examine(device, cluster)
        chunks = LogReader(device, examined.segments).chunks(since, examined.tail)
        began = time.perf_counter()
        page_count = _apply_all(store, chunks)
        return examined.tail - since, page_count, time.perf_counter() - began
    finally:
        device.close()
        store.close()


def _apply_all(store: PageLmdb, chunks: Iterator[tuple[int, bytes]]) -> int:
    """Apply every record that its page does not have yet; how many pages were looked at."""
    frames: dict[int, page.Frame | None] = {}
    # A checkpoint's page may be ahead of the checkpoint's LSN.
    floors: dict[int, int] = {}
    for start, chunk in chunks:
        for group in redo.decode_groups(chunk, start):
            lsn, cts, horizon = group.end_lsn, group.cts, group.horizon
            for record in group.records:
                page_id = record[1]
                if page_id not in frames:
                    image = store.read(page_id)
                    found = None if image is None else page.decode(image, page_id)
                    frames[page_id] = found
                    floors[page_id] = -1 if found is None else found.lsn
                if lsn > floors[page_id]:
                    frames[page_id] = apply(
                        frames[page_id], record, lsn=lsn, cts=cts, horizon=horizon
                    )
    return len(frames)
