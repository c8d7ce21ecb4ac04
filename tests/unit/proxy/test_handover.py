"""What a proxy's process leaves for the next one is all that a session needs."""

from __future__ import annotations

from polarless.proxy.handover import export_session, import_session
from polarless.proxy.messages import SYNC_MESSAGE, message
from polarless.proxy.service import Proxy
from polarless.wire import relay as wire
from tests.unit.proxy.played import READY, Client, Node, complete, make_proxy, query
from tests.unit.proxy.test_recovery import UPDATE, begin_and_update, bodies, data

PARSE = message(0x50, b"s1\0select 1\0\0\0")


def brought(client: Client, proxy: Proxy) -> Client:
    """The client, in another process."""
    packed = export_session(client.session)
    other = Client.__new__(Client)
    other.session = client.session.__class__(proxy)
    import_session(other.session, packed)
    proxy.sessions.add(other.session)
    other.transport = client.transport
    other.session.connection_made(client.transport)
    other.session.go_on()
    return other


async def first() -> tuple[Proxy, Node, Client]:
    proxy = make_proxy()
    node = Node(proxy, "compute-1")
    node.hello(epoch=1, writable=True)
    return proxy, node, await Client.greeted(proxy, node)


def second() -> tuple[Proxy, Node]:
    proxy = make_proxy()
    return proxy, Node(proxy, "compute-1")


async def test_an_idle_session_keeps_what_it_prepared_and_who_it_is() -> None:
    _, node, client = await first()
    client.say(PARSE + SYNC_MESSAGE)
    (frame,) = await data(node)
    meta = {"prepared": {b"s1": PARSE[5:]}, "settings": {"application_name": "x"}}
    node.tell(wire.META, frame.session, frame.cycle, wire.pack(meta))
    node.answer(frame, message(0x31, b""))
    client.told()
    proxy, node = second()
    client = brought(client, proxy)
    node.hello(epoch=1, writable=True)
    client.say(query("select 1"))
    frames = await node.heard()
    assert [frame.kind for frame in frames] == [wire.OPEN, wire.DATA, wire.DATA]
    opened = wire.unpack(frames[0].payload)
    assert opened["resume"] == {"user": "u"}
    assert opened["settings"] == {"application_name": "x"}
    assert (opened["pid"], opened["key"], opened["base"]) == (
        client.session.pid, client.session.key, client.session.base
    )  # fmt: skip
    assert bodies(frames[1:]) == [PARSE + SYNC_MESSAGE, query("select 1")]
    node.answer(frames[2], complete("SELECT 1"))
    assert client.told() == complete("SELECT 1") + READY[wire.IDLE]


async def test_an_open_transaction_and_half_a_message_go_on() -> None:
    _, node, client = await first()
    await begin_and_update(client, node)
    whole = query("select v from t")
    client.say(whole[:7])
    (half,) = await data(node)
    assert half.payload == whole[:7]
    proxy, node = second()
    client = brought(client, proxy)
    node.hello(epoch=1, writable=True)
    (begun,) = await data(node)
    assert begun.payload == query("begin")
    node.answer(begun, complete("BEGIN"), state=wire.IN_TRANSACTION)
    (updated,) = await data(node)
    assert updated.payload == UPDATE
    node.answer(updated, complete("UPDATE 1"), state=wire.IN_TRANSACTION)
    (half,) = await data(node)
    client.say(whole[7:])
    (rest,) = await data(node)
    assert half.payload + rest.payload == whole
    node.answer(rest, complete("SELECT 1"), state=wire.IN_TRANSACTION)
    assert client.told() == complete("SELECT 1") + READY[wire.IN_TRANSACTION]


async def test_a_commit_under_way_gets_its_verdict() -> None:
    _, node, client = await first()
    client.say(UPDATE)
    (sent,) = await data(node)
    proxy, node = second()
    client = brought(client, proxy)
    node.hello(epoch=1, writable=True)
    (asked,) = await node.heard()
    assert asked.kind == wire.VERDICT
    fields = wire.unpack(asked.payload)
    assert fields["xid"] == client.session.base + sent.cycle
    note = complete("UPDATE 1") + READY[wire.IDLE]
    verdict = {"id": fields["id"], "state": wire.COMMITTED, "lsn": 9, "note": note}
    node.tell(wire.VERDICT, 0, 0, wire.pack(verdict))
    assert await data(node) == []
    assert client.told() == note


async def test_a_client_that_has_not_said_who_it_is_may_still_do_so() -> None:
    proxy, node = second()
    client = Client(make_proxy())
    packet = client_packet()
    client.say(packet[:5])
    client = brought(client, proxy)
    node.hello(epoch=1, writable=True)
    client.say(packet[5:])
    (opened,) = await node.heard()
    assert opened.kind == wire.OPEN
    node.answer(opened)
    assert client.told() == READY[wire.IDLE]


def client_packet() -> bytes:
    body = (3 << 16).to_bytes(4, "big") + b"user\0u\0\0"
    return (4 + len(body)).to_bytes(4, "big") + body
