from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_pool.fabric import verbs
from memory_pool.fabric.verbs import Answer, Request
from polarless.errors import RemoteProtocolError
from tests.unit.memory_pool.fabric.wire import CLUSTER

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(
    st.builds(
        Request, st.sampled_from([1, 3, 4]), st.just(0), U16, U32,
        st.binary(min_size=16, max_size=16), U64, st.integers(0, verbs.LENGTH_MAX), U64, U64,
    )
)  # fmt: skip
def test_requests_come_back(request: Request) -> None:
    assert verbs.unpack_request(b"??" + verbs.pack_request(request), 2) == request


def test_answers_come_back() -> None:
    packed = verbs.pack_answer(7, verbs.OK, verbs.READ, 100, 0)
    assert verbs.unpack_answer(packed, 0) == Answer(7, verbs.OK, verbs.READ, 100, 0)


@given(st.text(max_size=16), st.integers(1, 2**63 - 1), st.binary(max_size=10))
def test_greetings_come_back(name: str, incarnation: int, rest: bytes) -> None:
    greeting = verbs.pack_greeting(CLUSTER, name, incarnation)
    assert verbs.unpack_greeting(greeting + rest, CLUSTER) == (name, incarnation, len(greeting))
    for cut in range(len(greeting)):
        assert verbs.unpack_greeting(greeting[:cut], CLUSTER) is None


@given(st.binary(min_size=64, max_size=64))
def test_random_bytes_are_refused_or_are_a_request(data: bytes) -> None:
    try:
        request = verbs.unpack_request(data, 0)
    except RemoteProtocolError:
        return
    assert request.length <= verbs.LENGTH_MAX


GOOD = verbs.pack_request(Request(verbs.READ, 0, 0, 1, b"k" * 16, 0, 8, 0, 0))


@pytest.mark.parametrize(
    "data",
    [
        b"NOPE" + GOOD[4:],
        GOOD[:4] + b"\x09" + GOOD[5:],  # op
        GOOD[:4] + b"\x01\x02" + GOOD[6:],  # flag
        GOOD[:4] + b"\x01\x01" + GOOD[6:],  # a guarded READ
        GOOD[:36] + b"\xff\xff\xff\xff" + GOOD[40:],  # length
        GOOD[:63] + b"\x01",  # reserved
    ],
)
def test_malformed_request_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        verbs.unpack_request(data, 0)


@pytest.mark.parametrize(
    "data",
    [
        verbs.ANSWER.pack(b"NOPE", 1, 0, 1, 0, 0, 0),
        verbs.ANSWER.pack(b"PLAN", 1, 99, 1, 0, 0, 0),
        verbs.ANSWER.pack(b"PLAN", 1, 0, 9, 0, 0, 0),
        verbs.ANSWER.pack(b"PLAN", 1, 0, 1, 1, 0, 0),
        verbs.ANSWER.pack(b"PLAN", 1, 0, 1, 0, 2**31, 0),
        verbs.ANSWER.pack(b"PLAN", 1, 0, 2, 0, 5, 0),
        verbs.ANSWER.pack(b"PLAN", 1, 1, 1, 0, 5, 0),
    ],
)
def test_malformed_answer_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        verbs.unpack_answer(data, 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "not a fabric greeting"),
        (b"\0\0", "not a fabric greeting"),
        (b"PLFB" + b"\xff" * 40, "fabric version"),
        (verbs.pack_greeting(b"x" * 16, "a", 1), "another cluster"),
        (verbs.GREETING.pack(b"PLFB", 1, CLUSTER, 1, 60000), "a name of 60000 bytes"),
        (verbs.GREETING.pack(b"PLFB", 1, CLUSTER, 1, 1) + b"\xff", "not UTF-8"),
    ],
)
def test_greeting_of_somebody_else_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        verbs.unpack_greeting(data, CLUSTER)
