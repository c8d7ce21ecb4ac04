"""The language of the home's transcripts: commands in, what the home does out.

    rw: join writer epoch=1          a node connects and joins; the next one is a new connection
    ro1: join warm held=1,2
    rw: advance lsn=42 cts=3 pages=7
    ro1: ack lsn=42    ro1: register 7    ro1: register 7 scan    ro1: unregister 7,8
    ro1: offer 7 lsn=40              the slot it is given is remembered by page
    ro1: validate 7 as_of=42 [generation=...] [lsn=...]
    ro1: drop 7        ro1: report 3,5    rw: refuse 7 ticket=1
    rw: fence epoch=2  control: fence epoch=2    revoked rw
    rw: confirm ticket=2 101         ro1: lost
    attach mem1 slots=2 [holds=slot/page/lsn/generation,...]   detach mem1   scanned   tick 20ms

A transcript starts with a home of epoch 1 that has no memory node. The line ``serve`` stands for
the first steps of a cluster: two memory nodes, the writer ``rw``, its first advance to LSN 10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from memory_pool.directory import messages as m
from memory_pool.home import Home
from memory_pool.slots import SCAN_DTYPE
from polarless.wire.memory import GENERATION_BITS, decode_claims

SERVE = """\
attach mem1 slots=2
attach mem2 slots=2
scanned
rw: join writer epoch=1
rw: advance lsn=10 cts=1
"""


class Script:
    """One home, and the names of who talks to it."""

    def __init__(self, *, home_epoch: int = 1) -> None:
        self.home = Home(home_epoch=home_epoch, epoch=1, now_us=0)
        self.now_us = 0
        self._connections: dict[str, int] = {}
        self._names: dict[int | None, str] = {None: "control"}
        self._offers: dict[tuple[str, int], tuple[Any, ...]] = {}

    def run(self, line: str) -> list[str]:
        """Carry out one command; what the home did, a line an effect."""
        if line == "serve":
            for step in SERVE.splitlines():
                self.run(step)
            return []
        if line.startswith("home "):
            epoch = int(line.removeprefix("home epoch="))
            self.__init__(home_epoch=epoch)  # type: ignore[misc]
            return []
        if line.startswith("tick "):
            self.now_us += int(line.removeprefix("tick ").removesuffix("ms")) * 1000
        event = self._event(line)
        effects = self.home.step(event, self.now_us)
        self.home.check()
        return [self._show(effect) for effect in effects]

    # Commands.

    def _event(self, line: str) -> m.Event:
        words = [word for word in line.split() if "=" not in word]
        options = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if words[0] == "tick":
            return m.Tick()
        if words[0] == "scanned":
            return m.Scanned()
        if words[0] == "attach":
            return m.Attached(words[1], [(0, int(options["slots"]), _scan(options))])
        if words[0] == "detach":
            return m.Detached(words[1], "as the transcript says")
        if words[0] == "revoked":
            return m.Revoked(self._connections[words[1]])
        who, verb, *rest = words
        who = who.removesuffix(":")
        return self._from_node(who, verb, rest, options)

    def _from_node(self, who: str, verb: str, rest: list[str], options: dict[str, str]) -> m.Event:
        if verb == "join":
            number = len(self._names)
            name = who if who not in self._connections else f"{who}#{number}"
            self._connections[who], self._names[number] = number, name
            return m.Joined(
                number, (number, verb), who, 1000 + number, "writer" in rest,
                int(options.get("epoch", 1)), "warm" in rest, _numbers(options.get("held", "")),
                [one for one in options.get("admitted", "").split(",") if one],
            )  # fmt: skip
        connection = self._connections.get(who)
        call: Any = (connection, verb)
        lsn = int(options.get("lsn", 0))
        if verb == "fence":
            return m.Fence(connection, call, int(options["epoch"]))
        assert connection is not None, who
        page = int(rest[0]) if rest and rest[0].isdigit() else 0
        match verb:
            case "lost":
                return m.Lost(connection)
            case "register":
                return m.Register(
                    connection, (connection, f"register {page}"), page, "scan" in rest
                )
            case "prefetch":
                return m.RegisterMany(connection, call, _numbers(rest[0]), False)
            case "unregister":
                return m.Unregister(connection, _numbers(rest[0]))
            case "advance":
                epoch = int(options.get("epoch", self.home.state.epoch))
                pages = _numbers(options.get("pages", ""))
                call = (connection, f"advance {lsn}")
                return m.Advance(connection, call, epoch, lsn, int(options.get("cts", 0)), pages)
            case "ack":
                return m.Ack(connection, lsn)
            case "report":
                return m.Report(connection, _numbers(rest[0]) if rest else [])
            case "refuse":
                return m.PullRefused(connection, page, int(options["ticket"]))
            case "confirm":
                verdicts = bytes(int(digit) for digit in rest[0])
                return m.Confirmed(connection, int(options["ticket"]), verdicts)
            case "offer":
                call = (connection, f"offer {page}", who, page, lsn)
                return m.Offered(connection, call, page, lsn, "scan" in rest)
            case "validate" | "drop":
                node, slab, slot, generation, image_lsn = self._offers[who, page]
                generation = _generation(options["generation"]) if "generation" in options else (
                    generation
                )  # fmt: skip
                if verb == "drop":
                    return m.DropOffer(connection, page, node, slab, slot, generation)
                call = (connection, f"validate {page}")
                return m.Validate(
                    connection, call, page, node, slab, slot, generation,
                    lsn or image_lsn, int(options["as_of"]),
                )  # fmt: skip
        raise ValueError(f"no such command: {verb}")

    # Effects.

    def _show(self, effect: m.Effect) -> str:
        match effect:
            case m.Answer(call, result):
                if call[1].startswith("offer") and result is not None:
                    self._offers[call[2], call[3]] = (*result, call[4])
                return f"{self._names[call[0]]} <- {call[1]}: {_result(result)}"
            case m.Fail(call, error):
                name = type(error).__name__
                return f"{self._names[call[0]]} <- {call[1]}: {name}: {error}"
            case m.Push(connection, "confirm", (ticket, as_of, data)):
                claims = " ".join(f"{page}@{lsn}" for page, lsn in decode_claims(data))
                return f"{self._names[connection]} <- confirm {ticket} as of {as_of}? {claims}"
            case m.Push(connection, "pull", (page, ticket, offer)):
                self._offers[self._names[connection], page] = (*offer, 0)
                return f"{self._names[connection]} <- pull {page} ticket {ticket}! {_result(offer)}"
            case m.Push(connection, method, args):
                return f"{self._names[connection]} <- {method}! {_result(args)}"
            case m.Admit(call, connection, place, cold, mark):
                how = "cold" if cold else "warm"
                return f"{self._names[connection]} <- join: {how}, place {place}, mark {mark}"
            case m.SetWord(place, value):
                return f"word {place} := {value}"
            case m.SetMark(mark):
                return f"mark := {mark}"
            case m.Publish(cts):
                return f"published := {cts}"
            case m.Know():
                return "what is published is known"
            case m.Revoke(connection):
                return f"revoke the keys of {self._names[connection]}"
            case m.Close(connection, reason):
                return f"close {self._names[connection]}: {reason}"
            case m.SlabsChanged():
                return "tell everybody the slabs"
            case m.Note(text, warning):
                return f"note{' (warning)' if warning else ''}: {text}"
        raise AssertionError(effect)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def _generation(text: str) -> int:
    epoch, _, count = text.partition(".")
    return int(epoch) << GENERATION_BITS | int(count)


def _scan(options: dict[str, str]) -> Any:
    if "holds" not in options:
        return None
    rows = [one.split("/") for one in options["holds"].split(",")]
    return np.array([(int(a), int(b), int(c), _generation(d)) for a, b, c, d in rows], SCAN_DTYPE)


def _result(value: Any) -> str:
    """Lists and tuples without the noise; a generation as home epoch and count."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_result(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        if not value:
            return "-"
        inner = [f"[{_result(one)}]" if isinstance(one, list | tuple) else _result(one)
                 for one in value]  # fmt: skip
        return " ".join(inner)
    if type(value) is int and value >> GENERATION_BITS:
        return f"{value >> GENERATION_BITS}.{value & (1 << GENERATION_BITS) - 1}"
    return str(value)
