"""The home's decisions about slots that it found full when it started.

It serves without them: a page that is only claimed counts as absent, and its reader turns to
storage. Beside that, the claims are judged, one question of `CONFIRM_PAGES` at a time::

    home                            writer                          storage
      |-- confirm(as_of = mark) ------>|-- page_lsns(pages, as_of) ---->|
      |                                |<-- the LSN of each, or 0 ------|
      |<-- confirmed(verdicts) --------|

"This image is the newest as of that mark" is what `validate` promises, too, so the same rule says
whether it still is (C4): nothing has made the page stale since. The writer only carries the
question. It need not have the page cached, and it need not be the writer that wrote the image.
"""

from __future__ import annotations

from memory_pool.directory import messages as m
from memory_pool.home_state import HomeState, Out
from polarless.wire.memory import encode_claims


class Adoption:
    """From claims to valid slots, in the background."""

    def __init__(self, state: HomeState) -> None:
        self._state = state
        self._claims = state.tables.claims

    def tick(self, out: Out) -> None:
        """Ask, or ask again."""
        if self._claims:
            self._claims.expire(self._state.now_us)
            self._ask(out)

    def writer_lost(self) -> None:
        """There is nobody who would bring the answer."""
        self._claims.put_back()

    def confirmed(self, event: m.Confirmed, out: Out) -> None:
        """Slots whose image is still the newest are valid; the others are free."""
        state, tables = self._state, self._state.tables
        writer = state.writer
        if writer is None or writer.connection != event.connection:
            return
        found = self._claims.verdict(event.ticket, event.verdicts)
        if found is None:
            return  # too late: it was asked again
        as_of, verdicts = found
        for claim, good in verdicts:
            tables.adopt(claim, good, as_of=as_of, mark=state.mark)
        if not self._claims:
            kept, count = tables.stats.adopted, self._claims.found
            text = f"home {state.home_epoch} keeps {kept} of {count} pages that it found"
            out.append(m.Note(text))
        self._ask(out)

    def _ask(self, out: Out) -> None:
        state = self._state
        writer = state.writer
        # A writer that has not advanced yet is busy with getting there.
        if state.rebuild is not None or writer is None or not state.caught_up:
            return
        deadline_us = state.now_us + state.config.confirm_timeout_us
        question = self._claims.ask(as_of=state.mark, deadline_us=deadline_us)
        if question is not None:
            ticket, claims = question
            pairs = [(page_id, lsn) for page_id, lsn, _ in claims]
            args = (ticket, state.mark, encode_claims(pairs))
            out.append(m.Push(writer.connection, "confirm", args))
