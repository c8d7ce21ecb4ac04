"""Which function handles which message. What is not listed never comes out of the `FrameReader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compute.pgwire import frontend
from compute.session import extended, simple
from polarless.errors import CallerMistake, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from compute.session.session import Session


def on_terminate(session: Session, body: bytes) -> None:
    """Goodbye."""
    session.flush()
    session.close(ConnectionLost("the client said goodbye"))


def on_stray_copy(session: Session, body: bytes) -> None:
    """COPY messages that were on their way when the COPY had failed."""


def on_function_call(session: Session, body: bytes) -> None:
    """The old function call protocol, which PostgreSQL itself calls obsolete."""
    session.mode = simple.ANSWER_READY
    raise CallerMistake("the function call protocol is not supported", sqlstate="0A000")


HANDLERS: dict[int, Callable[[Session, Any], None]] = {
    frontend.QUERY: simple.on_query,
    frontend.PARSE: extended.on_parse,
    frontend.BIND: extended.on_bind,
    frontend.DESCRIBE: extended.on_describe,
    frontend.EXECUTE: extended.on_execute,
    frontend.CLOSE: extended.on_close,
    frontend.FLUSH: extended.on_flush,
    frontend.SYNC: extended.on_sync,
    frontend.TERMINATE: on_terminate,
    frontend.COPY_DATA: on_stray_copy,
    frontend.COPY_DONE: on_stray_copy,
    frontend.COPY_FAIL: on_stray_copy,
    frontend.FUNCTION_CALL: on_function_call,
}
