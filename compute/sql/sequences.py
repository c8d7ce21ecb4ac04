"""Sequences: nextval, currval, setval, lastval.

A sequence's value is one row of a tree of its own: ``(last value, was it given out)``. The writer
reserves values ahead, 32 at first and more for those that are used much: the row holds the end of
what is reserved, and what is left of it is in memory. So a value is never given out twice, and a
writer that dies leaves a gap, as in PostgreSQL.

A reservation is a commit of its own, made within the statement's synchronous step and not waited
for: whoever commits a row with the value has a later place in the log. A sequence that was created
or restarted in this very transaction lives in its write set until that commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgpack

from compute.sql.catalog import PUBLIC, Sequence, decode_sequence, relation_key
from compute.sql.environment import lookup_path
from polarless.errors import CallerMistake, Reroute
from polarless.kernel.ids import CATALOG_TREE

if TYPE_CHECKING:
    from compute.sql.plan import SessionLike
    from compute.txn.engine import Engine

RESERVED_MIN: Final = 32
RESERVED_MAX: Final = 1024
ROW: Final = 1

pack_value = msgpack.Packer().pack


class Reserved:
    """What this node may give out of a sequence."""

    __slots__ = ("count", "definition", "following", "left")

    def __init__(self, definition: bytes) -> None:
        self.definition = definition
        self.left = 0
        self.following = 0
        self.count = RESERVED_MIN


_reserved: WeakKeyDictionary[Engine, dict[int, Reserved]] = WeakKeyDictionary()


def split_name(text: str) -> tuple[str, str]:
    """Schema and name of ``schema.name``; folded unless quoted."""
    parts: list[str] = []
    rest = text.strip()
    while rest:
        if rest[0] == '"' and '"' in rest[1:]:
            end = rest.index('"', 1)
            parts.append(rest[1:end])
            rest = rest[end + 1 :].removeprefix(".")
        else:
            part, _, rest = rest.partition(".")
            parts.append(part.lower())
    if not parts:
        raise CallerMistake("invalid name syntax", sqlstate="42602")
    return (parts[-2] if len(parts) > 1 else PUBLIC), parts[-1]


def find(session: SessionLike, text: str) -> tuple[Sequence, bytes]:
    """The sequence of this name, and its definition as stored. Raises 42P01; may suspend."""
    schema, name = split_name(text)
    engine, txn = session.engine, session.txn
    payload: Any = None
    own = txn.writes.get(CATALOG_TREE) if txn is not None else None
    bare = "." not in text
    for place in lookup_path() if bare else (schema,):
        schema = place
        key = relation_key("sequence", place, name)
        if own is not None and key in own:
            payload = own[key]
        else:
            version = engine.catalog_tree.find(key)
            payload = version[1] if version is not None else None
        if payload is not None:
            break
    if payload is None:
        if engine.catalog_tree.find(relation_key("table", schema, name)) is not None:
            raise CallerMistake(f'"{name}" is not a sequence', sqlstate="42809")
        raise CallerMistake(f'relation "{text}" does not exist', sqlstate="42P01")
    return decode_sequence(engine, schema, name, payload), payload


def _check_writer(session: SessionLike, name: str) -> None:
    if not session.engine.writable:
        raise Reroute(
            f"cannot execute {name}() on a reader (RO) node",
            hint="Connect to the cluster's URL (`polarless status` shows it): it leads to the "
            "writer (RW).",
        )
    if session.txn is not None and session.txn.read_only:
        raise CallerMistake(f"cannot execute {name}() in a read-only transaction", sqlstate="25006")


def after(sequence: Sequence, last: int, called: bool) -> int:
    """The value that follows. Raises 2200H."""
    if not called:
        return last
    value = last + sequence.increment
    if sequence.low <= value <= sequence.high:
        return value
    up = sequence.increment > 0
    if sequence.cycle:
        return sequence.low if up else sequence.high
    word, bound = ("maximum", sequence.high) if up else ("minimum", sequence.low)
    raise CallerMistake(
        f'nextval: reached {word} value of sequence "{sequence.name}" ({bound})', sqlstate="2200H"
    )


def nextval(session: SessionLike, text: str) -> int:
    """nextval(regclass). May suspend before it has changed anything."""
    _check_writer(session, "nextval")
    sequence, definition = find(session, text)
    txn, engine = session.txn, session.engine
    tree = sequence.tree
    own = txn.writes.get(tree.tree_id) if txn is not None else None
    if own is not None:
        assert txn is not None
        last, called = msgpack.unpackb(own[ROW])
        value = after(sequence, last, called)
        txn.put(tree, ROW, pack_value((value, True)))
    else:
        known = _reserved.setdefault(engine, {})
        found = known.get(tree.tree_id)
        if found is None or found.definition != definition:
            found = known[tree.tree_id] = Reserved(definition)
        if not found.left:
            _reserve(session, sequence, found)
        value = found.following
        found.left -= 1
        found.following = value + sequence.increment
    _remember(session, tree.tree_id, value)
    return value


def _remember(session: SessionLike, tree_id: int, value: int) -> None:
    values = session.sql.sequences
    if values is None:
        values = session.sql.sequences = {}
    values.pop(tree_id, None)
    if len(values) >= 1000:
        values.pop(next(iter(values)))
    values[tree_id] = value


def _write(session: SessionLike, sequence: Sequence, change: Any) -> None:
    """Commit ``change(last, called)`` to the row, now, whatever becomes of the statement."""
    engine, tree = session.engine, sequence.tree
    holder = engine.locks.rows.get(tree.tree_id, {}).get(ROW)
    if holder is not None:
        # A transaction that is not over has restarted it.
        if session.txn is None:
            raise CallerMistake(
                f'sequence "{sequence.name}" is being changed',
                sqlstate="55P03",
                hint="Try again when the other transaction has ended.",
            )
        session.txn.lock_and_get(tree, ROW)
    txn = engine.begin()
    try:
        payload = txn.lock_and_get(tree, ROW)
        last, called = msgpack.unpackb(payload) if payload is not None else (sequence.start, False)
        txn.put(tree, ROW, pack_value(change(last, called)))
        engine.commit(txn, lambda lsn, error: None)
    except BaseException:
        engine.rollback(txn)
        raise


def _reserve(session: SessionLike, sequence: Sequence, found: Reserved) -> None:
    step = sequence.increment

    def change(last: int, called: bool) -> tuple[int, bool]:
        first = after(sequence, last, called)
        room = (sequence.high - first if step > 0 else first - sequence.low) // abs(step) + 1
        count = min(found.count, room)
        found.following, found.left = first, count
        return first + (count - 1) * step, True

    try:
        _write(session, sequence, change)
    except BaseException:
        found.left = 0
        raise
    found.count = min(found.count * 2, RESERVED_MAX)


def currval(session: SessionLike, text: str) -> int:
    """currval(regclass): what nextval gave this session last."""
    sequence, _ = find(session, text)
    value = (session.sql.sequences or {}).get(sequence.tree.tree_id)
    if value is None:
        raise CallerMistake(
            f'currval of sequence "{sequence.name}" is not yet defined in this session',
            sqlstate="55000",
        )
    return int(value)


def lastval(session: SessionLike) -> int:
    """lastval(): what nextval gave this session last, of any sequence."""
    values = session.sql.sequences
    if not values:
        raise CallerMistake("lastval is not yet defined in this session", sqlstate="55000")
    return int(values[next(reversed(values))])


def setval(session: SessionLike, text: str, value: int, called: bool = True) -> int:
    """setval(regclass, value[, was it given out])."""
    _check_writer(session, "setval")
    sequence, _ = find(session, text)
    if not sequence.low <= value <= sequence.high:
        raise CallerMistake(
            f'setval: value {value} is out of bounds for sequence "{sequence.name}" '
            f"({sequence.low}..{sequence.high})",
            sqlstate="22003",
        )
    txn, tree = session.txn, sequence.tree
    if txn is not None and tree.tree_id in txn.writes:
        txn.put(tree, ROW, pack_value((value, called)))
    else:
        _write(session, sequence, lambda last, was: (value, called))
        _reserved.setdefault(session.engine, {}).pop(tree.tree_id, None)
    if called:
        _remember(session, tree.tree_id, value)
    return value


def forget(session: SessionLike, sequence: Sequence) -> None:
    """The sequence is restarted by a transaction: what is reserved is void once it commits."""
    known = _reserved.setdefault(session.engine, {})
    known.pop(sequence.tree.tree_id, None)
    txn = session.txn
    assert txn is not None

    def void() -> None:
        known.pop(sequence.tree.tree_id, None)

    txn.on_commit.append(void)
