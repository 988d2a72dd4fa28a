"""Transactions on the ledger's database: short, serialised where they write, durable when they return.

Many threads may use an open ledger, and it survives a fork. A SQLite connection is closed after every
transaction. Each process keeps one PostgreSQL connection, which a forked child leaves alone
(docs/decisions/ledger.md).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Pool, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool, QueuePool

from dpfewshot.errors import LedgerError, MissingExtra
from dpfewshot.ledger.faults import (
    DAMAGED,
    GONE,
    LOCKED,
    LOG_NEEDS_WRITING,
    NOT_OPENED,
    as_ledger_errors,
    is_locked,
)
from dpfewshot.ledger.file_lock import check_names, locked
from dpfewshot.ledger.urls import Place

BUSY_SECONDS: Final = 30.0
"""How long a call waits for other processes before it reports that the ledger is locked."""

_SQLITE_READ = ("BEGIN",)
_SQLITE_WRITE = ("BEGIN IMMEDIATE",)  # locks before the first read: sums cannot become stale
_POSTGRESQL_READ = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",)
_POSTGRESQL_WRITE = (
    f"SET LOCAL lock_timeout = '{int(BUSY_SECONDS)}s'",
    "SET LOCAL synchronous_commit = on",  # a server may be configured to lose its last commits
)

_POSTGRESQL_CONNECTION: Final = {
    "connect_timeout": int(BUSY_SECONDS),
    "tcp_user_timeout": int(BUSY_SECONDS * 1000),  # a dead host sends nothing
    "client_encoding": "utf8",
}

# SQLite keeps locks in the process's memory: a child forked during another thread's transaction would see
# that lock as held forever. So forks wait for transactions, which take turns. The lock is reentrant because a
# finaliser may cancel a plan during the same thread's transaction.
_one_at_a_time = threading.RLock()
os.register_at_fork(
    before=_one_at_a_time.acquire,
    after_in_parent=_one_at_a_time.release,
    after_in_child=_one_at_a_time.release,
)

_pooled: weakref.WeakSet[Engine] = weakref.WeakSet()
_left_alone: list[Pool] = []  # never closed in a child: that would end the parent's session


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
        self._file = Path(self.place.url.database or "").absolute()  # as the engine resolves it
        self._seen = False
        self._closed = False
        self._seconds = self.place.seconds(BUSY_SECONDS)
        with as_ledger_errors(self.place):
            if self.place.is_sqlite:
                self._engine = _sqlite(self.place)
                self._reader = _sqlite(self.place, self._connect_read_only)
            else:
                self._engine = self._reader = _postgresql(self.place)
        weakref.finalize(self, self._engine.dispose)  # closes the connections of a ledger that nobody closed

    @property
    def is_missing(self) -> bool:
        """Whether it is a file that does not exist. Opening a SQLite database would create it.

        Raises:
            LedgerError: its folder does not exist either, or this was closed.
        """
        self._check_open()
        if not self.place.is_sqlite:
            return False
        if not self._file.parent.is_dir():
            raise LedgerError(f"{self.place.name}: {NOT_OPENED}")
        return not self._file.exists()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only transaction on one snapshot. It creates nothing; who may only read may read."""
        opening = _SQLITE_READ if self.place.is_sqlite else _POSTGRESQL_READ
        engine = self._engine if self.place.is_sqlite and self._may_write else self._reader
        with self._transaction(engine, opening, create=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: on disk when this returns, rolled back if anything is raised.

        On SQLite no other writer runs meanwhile. On PostgreSQL the caller locks the row that it relies on.
        """
        opening = _SQLITE_WRITE if self.place.is_sqlite else _POSTGRESQL_WRITE
        with self._transaction(self._engine, opening, create=not self._seen) as connection:
            yield connection

    @property
    def _may_write(self) -> bool:
        """Whether this process may write to the SQLite file and beside it, where SQLite keeps its log."""
        real = os.access in os.supports_effective_ids
        return all(os.access(path, os.W_OK, effective_ids=real) for path in (self._file, self._file.parent))

    def _connect_read_only(self) -> sqlite3.Connection:
        """Open the SQLite file without writing beside it.

        Without a log beside it, the file is all there is, and the lock that every transaction takes keeps
        writers away: so SQLite may take it for immutable. It would overlook a log.
        """
        path = self._file.resolve()
        logs = [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]
        logged = any(log.exists() and log.stat().st_size for log in logs)
        options = "mode=ro" if logged else "mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, timeout=self._seconds)
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            if logged:
                raise LedgerError(f"{self.place.name}: {LOG_NEEDS_WRITING}") from None
            raise
        return connection

    def use_write_ahead_log(self) -> None:
        """Let readers of a SQLite file run while another process writes. The setting is kept in the file."""
        deadline = time.monotonic() + BUSY_SECONDS
        with as_ledger_errors(self.place):
            while not self._switched_to_write_ahead_log(deadline):
                time.sleep(0.02)

    def _switched_to_write_ahead_log(self, deadline: float) -> bool:
        # processes that switch at the same time may fail with "locked" without the usual wait
        try:
            with self._turn(create=True), self._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except OperationalError as error:
            if is_locked(error) and time.monotonic() < deadline:
                return False
            raise
        return True

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True
        self._engine.dispose()  # a reader of SQLite pools nothing

    @contextmanager
    def _transaction(self, engine: Engine, opening: tuple[str, ...], *, create: bool) -> Iterator[Connection]:
        self._check_open()
        if self._seen and self.is_missing:
            raise LedgerError(f"{self.place.name}: {GONE}")  # else SQLite would create an empty one
        with as_ledger_errors(self.place), self._turn(create=create), engine.begin() as connection:
            for statement in opening:
                connection.exec_driver_sql(statement)
            if self.place.is_sqlite:
                self._check_length(connection)
            yield connection

    @contextmanager
    def _turn(self, *, create: bool) -> Iterator[None]:
        """Keep SQLite connections from overlapping: held from before one opens until after it closes."""
        if not self.place.is_sqlite:
            yield
            return
        with _one_at_a_time, ExitStack() as stack:
            try:
                check_names(self._file)
                held = stack.enter_context(locked(self._file, self._seconds, create=create))
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
        """Refuse half a page, whose rest SQLite would read as empty; it detects missing pages itself."""
        page = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        file = connection.exec_driver_sql("PRAGMA database_list").one().file
        if Path(file).stat().st_size % page:
            raise LedgerError(f"{self.place.name}: {DAMAGED}")
        self._seen = True


def _sqlite(place: Place, creator: Callable[[], sqlite3.Connection] | None = None) -> Engine:
    waiting = {} if "timeout" in place.url.query else {"timeout": BUSY_SECONDS}
    options = {"connect_args": waiting} if creator is None else {"creator": creator}
    engine = create_engine(place.url, poolclass=NullPool, hide_parameters=True, **options)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy's recipe for pysqlite: the driver must not begin transactions itself
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
            pool_size=1,  # threads take turns: a server supports as many processes as connections
            max_overflow=0,
            pool_timeout=BUSY_SECONDS,
            pool_pre_ping=True,  # the server may have restarted
            hide_parameters=True,
            # a stricter level would keep the snapshot from before the row lock, and overspend
            isolation_level="READ COMMITTED",
            connect_args={k: v for k, v in _POSTGRESQL_CONNECTION.items() if k not in place.url.query},
        )
    except ImportError:
        raise MissingExtra("a ledger in PostgreSQL", "postgresql") from None
    _pooled.add(engine)
    return engine
