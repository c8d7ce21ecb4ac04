"""Frames between a proxy and a compute node, however the stream is cut."""

from __future__ import annotations

import pytest

from polarless.errors import RemoteProtocolError
from polarless.wire import relay


@pytest.mark.parametrize("step", [1, 3, 14, 1000, 10**6])
def test_the_same_frames_come_out_however_the_stream_is_cut(step: int) -> None:
    frames = [
        relay.frame(relay.DATA, 1, 2, bytes(range(256)) * 20, relay.IDLE),
        relay.frame(relay.CLOSE, 3),
        relay.frame(relay.META, 1, 2, relay.pack({"snapshots": [1]})),
    ]
    stream = b"".join(frames) * 3
    buffer, found = relay.FrameBuffer(), []
    for start in range(0, len(stream), step):
        found += list(buffer.take(stream[start : start + step]))
    assert [relay.frame(kind, session, cycle, payload, flag)
            for session, cycle, kind, flag, payload in found] == frames * 3  # fmt: skip
    assert all(type(frame.payload) is bytes for frame in found)


def test_an_impossible_length_is_refused_before_its_payload_comes() -> None:
    header = relay.HEADER.pack(relay.PAYLOAD_BYTES_MAX + 1, 1, 1, relay.DATA, 0)
    buffer = relay.FrameBuffer()
    assert not list(buffer.take(header[:-1]))
    with pytest.raises(RemoteProtocolError, match="a frame of 268435457 bytes"):
        list(buffer.take(header[-1:]))


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x81\x80\x01", b"\x90", relay.pack({"pid": "1"}), relay.pack({})]
)
def test_fields_of_another_kind_are_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        relay.fields(payload, pid=int)
