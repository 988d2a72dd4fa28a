"""Transactions on the ledger's database: short, serialised where they write, durable when they return.

An open ledger may be used by many threads and carried across a fork. To SQLite no connection stays open
between two transactions; to PostgreSQL one a process does, which a forked child leaves alone
(docs/decisions/ledger.md).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Pool, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool, QueuePool

from dpfewshot.errors import LedgerError, MissingExtra
from dpfewshot.ledger.faults import DAMAGED, GONE, LOCKED, NOT_OPENED, as_ledger_errors, is_locked
from dpfewshot.ledger.file_lock import check_names, locked
from dpfewshot.ledger.urls import Place

BUSY_SECONDS: Final = 30.0
"""How long a call waits for other processes before it says that the ledger is locked."""

_SQLITE_READ = ("BEGIN",)
_SQLITE_WRITE = ("BEGIN IMMEDIATE",)  # takes the write lock before the first read: sums cannot grow stale
_POSTGRESQL_READ = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",)
_POSTGRESQL_WRITE = (
    f"SET LOCAL lock_timeout = '{int(BUSY_SECONDS)}s'",
    "SET LOCAL synchronous_commit = on",  # a server may be set to lose its last commits
)

_POSTGRESQL_CONNECTION: Final = {
    "connect_timeout": int(BUSY_SECONDS),
    "tcp_user_timeout": int(BUSY_SECONDS * 1000),  # a host that is gone says nothing
    "client_encoding": "utf8",
}

# SQLite keeps locks in the process's memory: a child forked in the middle of another thread's transaction
# would believe for ever that it is held. So forks wait for transactions, and these take turns. Reentrant,
# because a finaliser may cancel a plan in the middle of the same thread's transaction.
_one_at_a_time = threading.RLock()
os.register_at_fork(
    before=_one_at_a_time.acquire,
    after_in_parent=_one_at_a_time.release,
    after_in_child=_one_at_a_time.release,
)

_pooled: weakref.WeakSet[Engine] = weakref.WeakSet()
_left_alone: list[Pool] = []  # never closed in a child: that would say goodbye in the parent's name


def _leave_connections_to_the_parent() -> None:
    for engine in _pooled:
        _left_alone.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_leave_connections_to_the_parent)


class Database:
    """The database at one place.

    Raises:
        LedgerError: the URL is not one of a ledger.
        MissingExtra: the driver is not installed.
    """

    def __init__(self, url: str) -> None:
        self.place = Place.parse(url)
        self._file = Path(self.place.url.database or "").absolute()  # as the engine reads it: from here
        self._seen = False
        self._closed = False
        with as_ledger_errors(self.place):
            self._seconds = float(str(self.place.url.query.get("timeout", BUSY_SECONDS)))
            self._engine = _sqlite(self.place) if self.place.is_sqlite else _postgresql(self.place)
        weakref.finalize(self, self._engine.dispose)  # a ledger that nobody closed says goodbye all the same

    @property
    def is_missing(self) -> bool:
        """Whether it is a file that is not there. Merely looking at a SQLite database would make it.

        Raises:
            LedgerError: its folder is not there either, or this was closed.
        """
        self._check_open()
        if not self.place.is_sqlite:
            return False
        if not self._file.parent.is_dir():
            raise LedgerError(f"{self.place.name}: {NOT_OPENED}")
        return not self._file.exists()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot, for looking."""
        with self._transaction(_SQLITE_READ if self.place.is_sqlite else _POSTGRESQL_READ) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction, on disk when this returns, undone if anything is raised.

        On SQLite no other writer runs meanwhile; on PostgreSQL lock the row that you decide upon.
        """
        with self._transaction(_SQLITE_WRITE if self.place.is_sqlite else _POSTGRESQL_WRITE) as connection:
            yield connection

    def use_write_ahead_log(self) -> None:
        """Let readers of a SQLite file go on while another process writes. The file remembers it."""
        deadline = time.monotonic() + BUSY_SECONDS
        with as_ledger_errors(self.place):
            while not self._switched_to_write_ahead_log(deadline):
                time.sleep(0.02)

    def _switched_to_write_ahead_log(self, deadline: float) -> bool:
        # of processes that switch at once, some are told "locked" without the wait that all else gets
        try:
            with self._turn(), self._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except OperationalError as error:
            if is_locked(error) and time.monotonic() < deadline:
                return False
            raise
        return True

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True
        self._engine.dispose()

    @contextmanager
    def _transaction(self, opening: tuple[str, ...]) -> Iterator[Connection]:
        self._check_open()
        if self._seen and self.is_missing:
            raise LedgerError(f"{self.place.name}: {GONE}")  # or SQLite would make an empty one
        with as_ledger_errors(self.place), self._turn(), self._engine.begin() as connection:
            for statement in opening:
                connection.exec_driver_sql(statement)
            if self.place.is_sqlite:
                self._check_length(connection)
            yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """From before a connection to SQLite is opened until after it is closed, no other one is."""
        if not self.place.is_sqlite:
            yield
            return
        with _one_at_a_time, ExitStack() as stack:
            try:
                check_names(self._file)
                held = stack.enter_context(locked(self._file, self._seconds, create=not self._seen))
            except LedgerError as error:
                raise LedgerError(f"{self.place.name}: {error}") from None
            except OSError:
                raise LedgerError(f"{self.place.name}: {NOT_OPENED}") from None
            if not held:
                raise LedgerError(f"{self.place.name}: {LOCKED}")
            yield

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerError(f"{self.place.name} was closed")

    def _check_length(self, connection: Connection) -> None:
        """SQLite finds a file that lacks pages, but reads half a page as if the rest of it were empty."""
        page = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        file = connection.exec_driver_sql("PRAGMA database_list").one().file
        if Path(file).stat().st_size % page:
            raise LedgerError(f"{self.place.name}: {DAMAGED}")
        self._seen = True


def _sqlite(place: Place) -> Engine:
    waiting = {} if "timeout" in place.url.query else {"timeout": BUSY_SECONDS}
    engine = create_engine(place.url, poolclass=NullPool, hide_parameters=True, connect_args=waiting)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy's recipe for pysqlite: the driver begins no transactions of its own
        connection.isolation_level = None
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            connection.close()
            raise

    return engine


def _postgresql(place: Place) -> Engine:
    try:
        engine = create_engine(
            place.url,
            poolclass=QueuePool,
            pool_size=1,  # threads take turns: a server serves as many processes as it has connections
            max_overflow=0,
            pool_timeout=BUSY_SECONDS,
            pool_pre_ping=True,  # the server may have been started again
            hide_parameters=True,
            # a stricter level would keep the snapshot from before the row's lock, and overspend
            isolation_level="READ COMMITTED",
            connect_args={k: v for k, v in _POSTGRESQL_CONNECTION.items() if k not in place.url.query},
        )
    except ImportError:
        raise MissingExtra("a ledger in PostgreSQL", "postgresql") from None
    _pooled.add(engine)
    return engine
