"""``python -m storage.dump DIR``: what a storage folder holds, read only.

DIR is a cluster's data directory, or its ``storage`` folder. Prints the state record, the segments
with their groups, and the stored pages; ``--groups`` and ``--pages`` list them one by one,
``--page ID`` shows one page with its rows, ``--json`` prints one object instead of text.

The whole log and every stored page are checked on the way. Exit codes: 0 all is well; 1 damage was
found (it is named, and what could be read is printed all the same); 2 there is nothing to read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polarless.errors import CorruptData, PolarlessError
from polarless.kernel import redo
from polarless.kernel.page import KIND_NAMES, Frame, decode
from storage.backends.log_files import LogFiles
from storage.backends.page_lmdb import PageLmdb
from storage.log import segment
from storage.log.reader import LogReader
from storage.log.recovery import examine
from storage.pages.folded import decode_folded


def storage_folder(path: Path) -> Path | None:
    """The folder that has ``log`` in it: ``path`` or its ``storage``; None if neither has."""
    return next((folder for folder in (path / "storage", path) if (folder / "log").is_dir()), None)


def read_all(folder: Path, *, groups: bool, pages: bool, page_id: int | None) -> dict[str, Any]:
    """Everything that was asked for, as plain values; ``damage`` lists what is wrong."""
    result: dict[str, Any] = {"folder": str(folder), "damage": []}
    device = LogFiles(folder / "log", create=False, read_only=True)
    try:
        _read_log(device, result, groups=groups)
    finally:
        device.close()
    if PageLmdb.exists(folder / "pages"):
        store = PageLmdb(folder / "pages", read_only=True)
        try:
            _read_pages(store, result, pages=pages, page_id=page_id)
        finally:
            store.close()
    return result


def _read_log(device: LogFiles, result: dict[str, Any], *, groups: bool) -> None:
    state = device.read_state()
    cluster = segment.cluster_of(state) if state else None
    result["cluster"] = cluster.hex() if cluster else None
    result["segments"] = [{"start": start, "bytes": size} for start, size in device.segments()]
    if cluster is None:
        if state is not None:
            result["damage"].append("the log's state record is damaged")
        return
    try:
        found = examine(device, cluster)
    except CorruptData as error:
        result["damage"].append(error.message)
        return
    result["log"] = {
        "epoch": found.epoch, "tail": found.tail, "cts": found.cts, "groups": found.groups,
        "next_page": found.next_page, "torn_bytes": found.torn_bytes,
    }  # fmt: skip
    if groups and found.segments:
        reader = LogReader(device, found.segments)
        result["groups"] = list(_groups(reader, found.tail))


def _groups(reader: LogReader, tail: int) -> Iterator[dict[str, Any]]:
    for start, data in reader.chunks(reader.first, tail):
        for group in redo.decode_groups(data, start):
            names: dict[str, int] = {}
            for record in group.records:
                name = redo.OP_NAMES.get(record[0], str(record[0]))
                names[name] = names.get(name, 0) + 1
            yield {
                "start": group.start_lsn, "end": group.end_lsn, "epoch": group.epoch,
                "cts": group.cts, "transaction": group.transaction_id, "records": names,
                "pages": sorted({record[1] for record in group.records}),
            }  # fmt: skip


def _read_pages(
    store: PageLmdb, result: dict[str, Any], *, pages: bool, page_id: int | None
) -> None:
    try:
        folded = decode_folded(store.read_state(), None)
        result["folded"] = folded._asdict()
    except CorruptData as error:
        result["damage"].append(error.message)
    kinds: dict[str, int] = {}
    listed: list[dict[str, Any]] = []
    for found in store.page_ids():
        try:
            frame = decode(store.read(found) or b"", found)
        except CorruptData as error:
            result["damage"].append(error.message)
            continue
        kind = KIND_NAMES[frame.kind]
        kinds[kind] = kinds.get(kind, 0) + 1
        if pages:
            listed.append(_summary(frame))
        if found == page_id:
            result["page"] = _summary(frame) | {
                "rows": {repr(key): repr(frame.rows[key]) for key in frame.rows},
                "keys_list": [repr(key) for key in frame.keys], "children": frame.children,
            }  # fmt: skip
    result["page_counts"] = kinds
    if pages:
        result["pages"] = listed
    if page_id is not None and "page" not in result:
        result["damage"].append(f"page {page_id} is not stored (yet): look for it in the log")


def _summary(frame: Frame) -> dict[str, Any]:
    return {
        "page": frame.page_id, "kind": KIND_NAMES[frame.kind], "tree": frame.tree_id,
        "lsn": frame.lsn, "keys": len(frame.keys),
        "low": None if frame.low is None else repr(frame.low),
        "high": None if frame.high is None else repr(frame.high),
    }  # fmt: skip


def print_text(values: dict[str, Any]) -> None:
    """The same for people."""
    write = sys.stdout.write
    for name, value in values.items():
        if isinstance(value, list):
            write(f"{name} ({len(value)})\n")
            for item in value:
                text = (
                    "  ".join(f"{key} {field}" for key, field in item.items())
                    if isinstance(item, dict) else str(item)
                )  # fmt: skip
                write(f"  {text}\n")
        elif isinstance(value, dict):
            write(f"{name}\n")
            for key, field in value.items():
                write(f"  {key:12} {field}\n")
        else:
            write(f"{name:12} {value}\n")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m storage.dump", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--groups", action="store_true", help="list every group of the log")
    parser.add_argument("--pages", action="store_true", help="list every stored page")
    parser.add_argument("--page", type=int, metavar="ID", help="show one stored page")
    options = parser.parse_args(arguments)
    folder = storage_folder(options.folder)
    if folder is None:
        sys.stderr.write(f"{options.folder}: no storage folder here (no log/ in it)\n")
        return 2
    try:
        values = read_all(folder, groups=options.groups, pages=options.pages, page_id=options.page)
    except (PolarlessError, OSError) as error:
        sys.stderr.write(f"{folder}: {error}\n")
        return 1
    if options.json:
        sys.stdout.write(json.dumps(values) + "\n")
    else:
        print_text(values)
    return 1 if values["damage"] else 0


if __name__ == "__main__":
    sys.exit(main())
