"""The net under the tests has no hole: unexpected log records are caught, expected ones are not."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from tests.conftest import UnexpectedLogs


def record(level: int, text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("storage.log", level, __file__, 1, text, args, None)


def test_unexpected_warning_is_caught() -> None:
    handler = UnexpectedLogs([r"^asyncio: "])
    handler.handle(record(logging.WARNING, "torn tail of %d bytes", 17))
    with pytest.raises(pytest.fail.Exception, match=r"storage\.log: torn tail of 17 bytes"):
        handler.check()
    handler.check()  # told once


def test_expected_warning_passes() -> None:
    handler = UnexpectedLogs([r"^asyncio: ", r"torn tail of \d+ bytes"])
    handler.handle(record(logging.ERROR, "torn tail of %d bytes", 17))
    handler.check()


@pytest.mark.allow_log(r"this one is expected")
def test_mark_reaches_the_hook() -> None:
    logging.getLogger("tests").error("this one is expected")


async def test_debug_mode_and_costly_checks_are_on() -> None:
    assert asyncio.get_running_loop().get_debug()
    assert os.environ["POLARLESS_VERIFY"] == "1"
