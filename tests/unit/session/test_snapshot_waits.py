"""A statement whose snapshot must be waited for: the transaction keeps what it wrote before."""

from __future__ import annotations

import pytest

from tests.unit.session.fakes import FakeSuspend, FakeTransaction, Harness
from tests.unit.session.wire import B, D, E, P, Q, S


@pytest.mark.parametrize("hot", [False, True])
def test_waiting_for_a_snapshot_does_not_undo_earlier_statements(
    hot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    client = h.connect()
    client.query("begin")
    client.query("put first")
    client.send(P("select 1", "s"), S)
    start = FakeTransaction.start_statement

    def waits_once(txn: FakeTransaction) -> None:
        if "snapshot" not in h.engine.ready:
            raise FakeSuspend(h.engine, "snapshot")
        start(txn)

    monkeypatch.setattr(FakeTransaction, "start_statement", waits_once)
    if hot:
        assert client.send(B(name="s"), D(), E(), S) == []
    else:
        assert client.send(Q("select 1")) == []
    h.engine.resume("snapshot")
    h.clock.run()
    assert client.take()[-1] == "Z T"
    client.query("commit")
    assert h.engine.committed == ["first"]
