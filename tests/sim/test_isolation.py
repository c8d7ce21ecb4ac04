"""The checker of list-append histories, on histories whose verdict is known."""

from __future__ import annotations

import pytest

from tests.sim.isolation import COMMITTED, FAILED, UNKNOWN, Txn, anomalies

X, Y = 1, 2


def txn(*ops: tuple[int, int | tuple[int, ...]], state: str = COMMITTED) -> Txn:
    return Txn(list(ops), state)


def test_a_serial_history_has_no_anomaly() -> None:
    history = [
        Txn([(X, 1), (Y, 2)], COMMITTED, 0, 1),
        Txn([(X, (1,)), (X, 3), (X, (1, 3))], COMMITTED, 2, 3),
        Txn([(X, (1, 3)), (Y, (2,))], COMMITTED, 4, 5),
        Txn([(X, 4)], FAILED, 6, 7),
        Txn([(Y, 5)], UNKNOWN, 6),
        Txn([(X, (1, 3)), (Y, (2, 5))], COMMITTED, 8, 9),
    ]
    assert anomalies(history, serializable=True) == []


READ_ALL = txn((X, (1, 2)), (Y, (4, 3)))
WRONG = {
    "G0": [txn((X, 1), (Y, 3)), txn((X, 2), (Y, 4)), READ_ALL],
    "G1a": [txn((X, 1), state=FAILED), txn((X, (1,)))],
    "G1b": [txn((X, 1), (X, 2)), txn((X, (1,))), txn((X, (1, 2)))],
    "G1c": [txn((X, 1), (Y, (3,))), txn((Y, 3), (X, (1,)))],
    # Read skew: the reader sees the second's Y and not its X.
    "G-single": [txn((X, 1), (Y, 3)), txn((X, ()), (Y, (3,))), txn((X, (1,)))],
    "stale": [Txn([(X, 1)], COMMITTED, 0, 1), Txn([(X, ())], COMMITTED, 2, 3)],
    "two orders": [txn((X, 1)), txn((X, 2)), txn((X, (1, 2))), txn((X, (2, 1)))],
    "twice": [txn((X, 1)), txn((X, (1, 1)))],
    "nobody": [txn((X, (7,)))],
    "its own": [txn((X, 1), (X, ()))],
}
# A lost update: both saw nothing, and only one append is left.
LOST = [
    Txn([(X, ()), (X, 1)], COMMITTED, 0, 2),
    Txn([(X, ()), (X, 2)], COMMITTED, 0, 2),
    Txn([(X, (2,))], COMMITTED, 3, 4),
]


@pytest.mark.parametrize("name", WRONG)
def test_an_anomaly_is_found_and_named(name: str) -> None:
    found = anomalies(WRONG[name])
    assert any(name in text for text in found), found


def test_a_lost_update_is_found() -> None:
    assert any(text.startswith("stale") for text in anomalies(LOST))


def test_write_skew_is_an_anomaly_of_serializable_only() -> None:
    history = [
        txn((X, ()), (Y, 3)),
        txn((Y, ()), (X, 1)),
        txn((X, (1,)), (Y, (3,))),
    ]
    assert anomalies(history) == []
    assert anomalies(history, serializable=True) == ["G2: T0 -> T1 -> T0"]


def test_what_a_failed_transaction_read_is_nobodys_business() -> None:
    assert anomalies([txn((X, 1)), txn((X, ()), state=FAILED), txn((X, (1,)))]) == []
