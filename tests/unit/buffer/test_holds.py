"""Fetches while another fetch holds the reader's channel to the home."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fakes import Cluster
from tests.unit.txn.test_engine import make_tree, put_rows, read_all


async def test_a_page_of_before_the_hold_is_not_taken_for_that_of_after_it() -> None:
    async with Cluster() as cluster:
        writer, reader = await cluster.writer(), cluster.reader()
        tree = await make_tree(writer)
        await put_rows(writer, tree, {1: b"old"})
        # Another fetch holds the channel: no message of the home counts until it lets go.
        fetcher: Any = reader.fetcher
        fetcher.hold()
        await put_rows(writer, tree, {1: b"new"})
        # Nobody tells of that commit who comes only now.
        own = reader.tree(tree.tree_id, tree.root, int_keys=True)
        reading = asyncio.ensure_future(read_all(reader, own))
        for _ in range(20):
            await asyncio.sleep(0)
        fetcher.release()
        assert await reading == [(1, b"new")]
        assert await read_all(reader, own) == [(1, b"new")]
