"""The settings of one session (SET, SHOW, startup parameters), and how they follow transactions.

A SET inside a transaction is taken back when the transaction is rolled back; a SET LOCAL when it
ends either way. Values are kept as PostgreSQL shows them. What the server acts upon is also there
as plain numbers, for hot paths: `statement_timeout_s`, `lock_timeout_s`, `isolation`, ...

Names that are not in `DEFAULTS` raise `CallerMistake` 42704, except custom ones with a dot.
Settings of PostgreSQL that mean nothing here (`jit`, `work_mem`) are kept and shown, since drivers
and tools set them unasked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from compute.sql import environment, zones
from compute.txn.reuse import Reuse
from polarless.errors import CallerMistake

SERVER_VERSION: Final = "15.0"

# Name in small letters -> value. The first group is fixed for the session.
FIXED: Final[dict[str, str]] = {
    "block_size": "16384",
    "data_checksums": "on",
    "integer_datetimes": "on",
    "is_superuser": "on",
    "lc_collate": "C",
    "lc_ctype": "C",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "server_encoding": "UTF8",
    "server_version": SERVER_VERSION,
    "server_version_num": "150000",
    "session_authorization": "",
    "wal_level": "replica",
}
DEFAULTS: Final[dict[str, str]] = {
    "application_name": "",
    "bytea_output": "hex",
    "check_function_bodies": "on",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "datestyle": "ISO, MDY",
    "default_table_access_method": "heap",
    "default_tablespace": "",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "enable_bitmapscan": "on",
    "enable_hashjoin": "on",
    "enable_indexscan": "on",
    "enable_mergejoin": "on",
    "enable_nestloop": "on",
    "enable_seqscan": "on",
    "escape_string_warning": "on",
    "extra_float_digits": "1",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "intervalstyle": "postgres",
    "jit": "off",
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "lock_timeout": "0",
    "log_statement": "none",
    "maintenance_work_mem": "64MB",
    "max_parallel_workers_per_gather": "0",
    "password_encryption": "scram-sha-256",
    "plan_cache_mode": "auto",
    "polarless.max_staleness": "1s",
    "polarless.read_consistency": "strong",
    "polarless.temporary_schema": "",
    "quote_all_identifiers": "off",
    "role": "none",
    "row_security": "on",
    "search_path": '"$user", public',
    "session_replication_role": "origin",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "synchronize_seqscans": "on",
    "synchronous_commit": "on",
    "temp_buffers": "8MB",
    "timezone": "UTC",
    "transaction_deferrable": "off",
    "vacuum_cost_delay": "0",
    "work_mem": "4MB",
    "xmloption": "content",
}

# Told to the client at startup and whenever they change, under these spellings.
REPORTED: Final[dict[str, str]] = {
    "application_name": "application_name",
    "client_encoding": "client_encoding",
    "datestyle": "DateStyle",
    "default_transaction_read_only": "default_transaction_read_only",
    "in_hot_standby": "in_hot_standby",
    "integer_datetimes": "integer_datetimes",
    "intervalstyle": "IntervalStyle",
    "is_superuser": "is_superuser",
    "server_encoding": "server_encoding",
    "server_version": "server_version",
    "session_authorization": "session_authorization",
    "standard_conforming_strings": "standard_conforming_strings",
    "timezone": "TimeZone",
}

BOOLEANS: Final = frozenset(name for name, value in DEFAULTS.items() if value in ("on", "off"))
# What a client hears of, from ``client_min_messages`` up.
SEVERITIES: Final = {"DEBUG": 0, "LOG": 1, "NOTICE": 2, "INFO": 5, "WARNING": 3, "ERROR": 4}
_LEVELS: Final = {
    **dict.fromkeys(("debug", "debug1", "debug2", "debug3", "debug4", "debug5"), 0),
    "log": 1,
    "notice": 2,
    "warning": 3,
    "error": 4,
}
_TIMEOUTS: Final = frozenset(
    {
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
        "lock_timeout",
        "polarless.max_staleness",
        "statement_timeout",
    }
)
_ISOLATIONS: Final = ("read uncommitted", "read committed", "repeatable read", "serializable")
# What a read may lag behind: see `compute.txn.reuse`.
READ_CONSISTENCIES: Final = ("strong", "session", "bounded")
_UNITS_MS: Final = {"": 1, "us": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000,
                    "d": 86_400_000}  # fmt: skip
_TRUE: Final = frozenset({"on", "true", "yes", "1", "t", "y"})
_FALSE: Final = frozenset({"off", "false", "no", "0", "f", "n"})
_CUSTOM_MAX: Final = 100
_VALUE_BYTES_MAX: Final = 10_000


def startup_settings(startup: dict[str, str]) -> dict[str, str]:
    """The settings of a startup packet, those in ``options`` (``-c name=value``) too.

    Raises `CallerMistake` 42601 for other options.
    """
    found = {
        name: value
        for name, value in startup.items()
        if name not in ("user", "database", "options", "replication")
    }
    words = [
        re.sub(r"\\(.)", r"\1", word)
        for word in re.findall(r"(?:\\.|[^\s\\])+", startup.get("options", ""))
    ]
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word = words.pop(0)
        elif word.startswith(("-c", "--")):
            word = word[2:]
        else:
            raise CallerMistake(f"invalid command-line argument: {word}", sqlstate="42601")
        name, mark, value = word.partition("=")
        if not mark:
            raise CallerMistake(f"-c {word} requires a value", sqlstate="42601")
        found[name.replace("-", "_")] = value
    return found


class Settings:
    """One session's settings. ``report(name, value)`` is called when a reported one changes."""

    def __init__(
        self,
        startup: dict[str, str],
        *,
        fixed: dict[str, str],
        report: Callable[[str, str], None],
        current: dict[str, tuple[Callable[[], str], Callable[[str], None]]] | None = None,
        environment_changed: Callable[[], None] | None = None,
    ) -> None:
        # By what values are read and printed; None for the usual.
        self.environment: environment.Environment | None = None
        self._environment_changed = environment_changed
        self._fixed = FIXED | fixed
        # What is not kept here but asked for and changed elsewhere: the transaction's own state.
        self._current = current or {}
        self._values: dict[str, str] = {}
        # Grows with every change.
        self.version = 0
        self._startup: dict[str, str] = {}
        self._report = report
        # (name, value before or None, local), undone from the end.
        self._journal: list[tuple[str, str | None, bool]] = []
        self.statement_timeout_s = 0.0
        self.lock_timeout_s = 0.0
        self.idle_in_transaction_s = 0.0
        self.idle_s = 0.0
        # Whether the short way (`compute.session.hot`) would do other than the settings say.
        self.long_way = False
        self.notices_from = SEVERITIES["NOTICE"]
        self.isolation = "read committed"
        self.read_only = False
        # What the session has seen, and the same if it does not read strongly.
        self.own_reuse = Reuse()
        self.reuse: Reuse | None = None
        for name, value in startup.items():
            self._startup[name.lower()] = self._checked(name.lower(), value)
        self._values = dict(self._startup)
        self._refresh()
        self.environment = environment.of_settings(self)
        self._choose_way()

    # Reading.

    def show(self, name: str) -> str:
        """The value as SHOW prints it. Raises `CallerMistake` 42704."""
        name = name.lower()
        if name in self._current:
            return self._current[name][0]()
        for values in (self._values, self._fixed, DEFAULTS):
            if name in values:
                return values[name]
        raise _unknown(name)

    def all(self) -> list[tuple[str, str]]:
        """Every setting by name, for SHOW ALL and pg_settings."""
        current = {name: access[0]() for name, access in self._current.items()}
        return sorted((DEFAULTS | self._fixed | self._values | current).items())

    def reported(self) -> list[tuple[str, str]]:
        """What a client is told at startup."""
        return [(spelling, self.show(name)) for name, spelling in REPORTED.items()]

    # Changing.

    def set(self, name: str, value: str | None, *, local: bool = False) -> None:
        """SET name TO value; None means DEFAULT. Raises `CallerMistake`: 42704, 55P02, 22023."""
        name = name.lower()
        if name in self._fixed:
            raise CallerMistake(f'parameter "{name}" cannot be changed', sqlstate="55P02")
        if name in self._current:
            if value is not None:
                default = "default_" + name
                self._current[name][1](
                    self._checked(default, value) if default in DEFAULTS else value
                )
            return
        if value is not None:
            value = self._checked(name, value)
        elif name not in DEFAULTS and name not in self._values and name not in self._startup:
            raise _unknown(name)
        else:
            value = self._startup.get(name)
        before = self._values.get(name)
        if before == value:
            return
        self._journal.append((name, before, local))
        self._put(name, value)

    def reset_all(self) -> None:
        """RESET ALL, part of DISCARD ALL."""
        for name in list(self._values):
            if name != environment.TEMPORARY:
                self.set(name, None)

    # Transactions.

    def mark(self) -> int:
        """A position to go back to: a savepoint."""
        return len(self._journal)

    def rollback(self, mark: int = 0) -> None:
        """Take back what was set since."""
        while len(self._journal) > mark:
            name, before, _ = self._journal.pop()
            self._put(name, before)

    def commit(self) -> None:
        """The transaction is over: what was set stays, what was set LOCAL goes."""
        if self._journal:
            journal, self._journal = self._journal, []
            for name, before, local in reversed(journal):
                if local:
                    self._put(name, before)

    # Helpers.

    def export(self) -> dict[str, str]:
        """All that differ from the defaults, for `restore` on another node."""
        return dict(self._values)

    def restore(self, values: dict[str, str]) -> None:
        """Take what another session exported; nothing is reported."""
        self._journal.clear()
        self._values = dict(values)
        self.version += 1
        self._refresh()
        self._look_around()

    def _put(self, name: str, value: str | None) -> None:
        self.version += 1
        before = self._values.get(name, DEFAULTS.get(name))
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        self._refresh()
        if name in environment.NAMES:
            self._look_around()
        now = self._values.get(name, DEFAULTS.get(name))
        if name in REPORTED and now is not None and now != before:
            self._report(REPORTED[name], now)

    def _choose_way(self) -> None:
        idle = self.idle_in_transaction_s or self.idle_s
        self.long_way = bool(idle) or self.environment is not None

    def _look_around(self) -> None:
        found = environment.of_settings(self)
        if found != self.environment:
            self.environment = found
            self._choose_way()
            if self._environment_changed is not None:
                self._environment_changed()

    def _refresh(self) -> None:
        self.statement_timeout_s = self._seconds("statement_timeout")
        self.lock_timeout_s = self._seconds("lock_timeout")
        self.idle_in_transaction_s = self._seconds("idle_in_transaction_session_timeout")
        self.idle_s = self._seconds("idle_session_timeout")
        self._choose_way()
        self.notices_from = _LEVELS[self.show("client_min_messages")]
        self.isolation = self.show("default_transaction_isolation")
        self.read_only = self.show("default_transaction_read_only") == "on"
        level = self.show("polarless.read_consistency")
        self.own_reuse.is_session = level == "session"
        self.own_reuse.age_s = _milliseconds("", self.show("polarless.max_staleness")) / 1000
        self.reuse = None if level == "strong" else self.own_reuse

    def _seconds(self, name: str) -> float:
        value = self._values.get(name)
        return _milliseconds(name, value) / 1000 if value else 0.0

    def _date_style(self, value: str, small: str) -> str:
        """ISO is the only style; the order in which numbers are read may be set."""
        order = self._values.get("datestyle", DEFAULTS["datestyle"]).rpartition(" ")[2]
        words = {"mdy": "MDY", "us": "MDY", "noneuro": "MDY", "noneuropean": "MDY", "dmy": "DMY",
                 "euro": "DMY", "european": "DMY", "ymd": "YMD"}  # fmt: skip
        for word in (part.strip() for part in small.split(",")):
            if word in words:
                order = words[word]
            elif word in ("default", ""):
                order = "MDY"
            elif word in ("sql", "postgres", "german"):
                raise _invalid("DateStyle", value, hint="Dates are written in ISO style only.")
            elif word != "iso":
                raise CallerMistake(
                    f'invalid value for parameter "DateStyle": "{value}"',
                    sqlstate="22023",
                    detail=f'Unrecognized key word: "{word}".',
                )
        return f"ISO, {order}"

    def _checked(self, name: str, value: str) -> str:
        """The value in its canonical spelling."""
        if len(value) > _VALUE_BYTES_MAX:
            raise CallerMistake(
                f'value of parameter "{name}" is too long',
                sqlstate="22023",
                hint=f"The limit is {_VALUE_BYTES_MAX} characters.",
            )
        if name in self._fixed:
            raise CallerMistake(f'parameter "{name}" cannot be changed', sqlstate="55P02")
        if name not in DEFAULTS:
            if "." not in name:
                raise _unknown(name)
            if len(self._values) >= len(DEFAULTS) + _CUSTOM_MAX:
                raise CallerMistake(
                    f"a session has at most {_CUSTOM_MAX} custom parameters",
                    sqlstate="53400",
                    hint="RESET those that are not used any more.",
                )
            return value
        small = value.strip().lower()
        if name in BOOLEANS:
            if small in _TRUE or small in _FALSE:
                return "on" if small in _TRUE else "off"
            raise CallerMistake(f'parameter "{name}" requires a Boolean value', sqlstate="22023")
        if name in _TIMEOUTS:
            return _shown_time(_milliseconds(name, small))
        if name == "default_transaction_isolation" and small not in _ISOLATIONS:
            raise _invalid(name, value, hint="Available values: " + ", ".join(_ISOLATIONS) + ".")
        if name == "client_min_messages":
            if small not in _LEVELS:
                raise _invalid(name, value, hint="Available values: " + ", ".join(_LEVELS) + ".")
            return small
        if name == "polarless.read_consistency":
            if small not in READ_CONSISTENCIES:
                hint = "Available values: " + ", ".join(READ_CONSISTENCIES) + "."
                raise _invalid(name, value, hint=hint)
            return small
        if name == "timezone":
            try:
                return zones.find(value, setting=True).name
            except CallerMistake:
                raise CallerMistake(
                    f'invalid value for parameter "TimeZone": "{value}"', sqlstate="22023"
                ) from None
        if name in _CHOICES:
            if small not in _CHOICES[name]:
                raise _invalid(name, value, hint=f"Available values: {', '.join(_CHOICES[name])}.")
            return small
        if name == "client_encoding":
            if small.strip("'").replace("-", "") not in ("utf8", "unicode", "sql_ascii"):
                raise _invalid(name, value, hint="This server speaks UTF8 only.")
            return "UTF8"
        if name == "datestyle":
            return self._date_style(value, small)
        return small if name == "default_transaction_isolation" else value


_CHOICES: Final = {
    "intervalstyle": ("postgres", "postgres_verbose", "sql_standard", "iso_8601"),
    "bytea_output": ("escape", "hex"),
}


def _milliseconds(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{0,9})?)\s*([a-z]*)", text)
    if match is None or match[2] not in _UNITS_MS:
        raise _invalid(
            name, text, hint='Valid units for this parameter are "us", "ms", "s", "min", "h", "d".'
        )
    milliseconds = round(float(match[1]) * _UNITS_MS[match[2]])
    if milliseconds > 2**31 - 1:
        raise CallerMistake(
            f'{milliseconds} ms is outside the valid range for parameter "{name}"',
            sqlstate="22023",
        )
    return milliseconds


def _shown_time(milliseconds: int) -> str:
    """In the largest unit that leaves a whole number, as PostgreSQL shows it."""
    for unit in ("d", "h", "min", "s"):
        whole, rest = divmod(milliseconds, int(_UNITS_MS[unit]))
        if whole and not rest:
            return f"{whole}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0"


def _unknown(name: str) -> CallerMistake:
    return CallerMistake(f'unrecognized configuration parameter "{name}"', sqlstate="42704")


def _invalid(name: str, value: str, *, hint: str) -> CallerMistake:
    return CallerMistake(
        f'invalid value for parameter "{name}": "{value}"', sqlstate="22023", hint=hint
    )
