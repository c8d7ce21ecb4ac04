"""Settings by which values are read and printed, and those of the startup packet."""

from __future__ import annotations

import pytest

from compute.session.settings import Settings, startup_settings
from compute.sql import datetimes, zones
from compute.sql.environment import USUAL, current
from polarless.errors import CallerMistake


def made(**startup: str) -> Settings:
    return Settings(startup, fixed={}, report=lambda name, value: None)


def test_the_usual_settings_are_no_environment() -> None:
    settings = made()
    seen = [(settings.environment is None, settings.long_way)]
    settings.set("timezone", "Europe/Berlin")
    seen.append((settings.environment is None, settings.long_way))
    settings.rollback()
    seen.append((settings.environment is None, settings.long_way))
    assert seen == [(True, False), (False, True), (True, False)]
    assert made(timezone="Asia/Tokyo").long_way


def test_a_moment_is_read_and_printed_in_the_session_zone() -> None:
    settings = made(timezone="America/New_York")
    assert settings.environment is not None
    current.environment = settings.environment
    try:
        value = datetimes.parse_timestamp("2024-07-01 08:00", zoned=True)
        assert datetimes.moment_text(value) == "2024-07-01 08:00:00-04"
        assert datetimes.moment_text(datetimes.INFINITY) == "infinity"
    finally:
        current.environment = USUAL
    assert datetimes.moment_text(value) == "2024-07-01 12:00:00+00"


@pytest.mark.parametrize(
    ("clock", "moment"),
    [
        # Clocks go forward at 2:00: the offset before counts. They go back: the one after.
        ("2024-03-10 02:30", "2024-03-10 07:30:00+00"),
        ("2024-11-03 01:30", "2024-11-03 06:30:00+00"),
        ("2024-11-03 00:30", "2024-11-03 04:30:00+00"),
    ],
)
def test_where_clocks_are_changed(clock: str, moment: str) -> None:
    zone = zones.find("America/New_York")
    found = zone.moment(datetimes.parse_timestamp(clock))
    assert datetimes.moment_text(found) == moment
    assert zone.moment(zone.local(found)) == found or clock.startswith("2024-11-03 01")


def test_zones_that_are_none() -> None:
    with pytest.raises(CallerMistake) as caught:
        made().set("timezone", "Mars/Olympus")
    assert caught.value.sqlstate == "22023"
    settings = made()
    settings.set("timezone", "-5")
    assert settings.show("timezone") == "<-05>+05"
    assert settings.environment is not None
    assert settings.environment.zone.fixed_us == -5 * 3600 * 1_000_000


def test_options_of_the_startup_packet() -> None:
    found = startup_settings(
        {
            "user": "me",
            "options": r"-c timezone=UTC -csearch_path=a,b --lock-timeout=5s -c x.y=a\ b",
        }
    )
    expected = {"timezone": "UTC", "search_path": "a,b", "lock_timeout": "5s", "x.y": "a b"}
    assert found == expected
    for options in ("-Z", "-c timezone"):
        with pytest.raises(CallerMistake):
            startup_settings({"options": options})
