"""Transactions on the ledger's database: short, serialised where they write, durable when they return.

Many threads may use an open ledger, and it survives a fork. A SQLite connection is closed after every
transaction. Each process keeps one PostgreSQL connection, which a forked child leaves alone
(docs/decisions/ledger.md).
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Pool, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.pool import NullPool, QueuePool

from dpfewshot.account.file_lock import LOCKED, check_names, locked
from dpfewshot.account.history import VERIFY
from dpfewshot.errors import DPFewShotError, LedgerError, MissingExtra
from dpfewshot.runtime.forking import start_afresh_in_children

BUSY_SECONDS: Final = 30.0
"""How long a call waits for other processes before it reports that the ledger is locked."""

_SQLITE_READ = "BEGIN"
_SQLITE_WRITE = "BEGIN IMMEDIATE"  # locks before the first read: sums cannot become stale
_POSTGRESQL_READ = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_POSTGRESQL_WRITE = (  # a server may be configured to lose its last commits
    f"SELECT set_config('lock_timeout', '{int(BUSY_SECONDS)}s', true), "
    "set_config('synchronous_commit', 'on', true)"
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

_HEADER: Final = b"SQLite format 3\0"
"""What a SQLite file begins with; the size of a page follows."""

_left_alone: list[Pool] = []  # never closed in a child: that would end the parent's session


class Database:
    """The database at one place.

    Attributes:
        name: of the ledger, in messages.
        is_sqlite: whether it is a file on this host.
    """

    def __init__(self, url: str) -> None:
        self._url, self.name = _parsed(url)
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self._file = Path(self._url.database or "").absolute()  # as the engine resolves it
        self._seen = False
        self._closed = False
        self._seconds = _seconds(self._url)
        with self._failing():
            if self.is_sqlite:
                self._engine = _sqlite(self._url)
                self._reader = _sqlite(self._url, self._connect_read_only)
            else:
                self._engine = self._reader = _postgresql(self._url)
                start_afresh_in_children(self)
        weakref.finalize(self, self._engine.dispose)  # closes the connections of a ledger that nobody closed

    def after_fork(self) -> None:
        """Leave PostgreSQL's connection to the parent."""
        _left_alone.append(self._engine.pool)
        self._engine.dispose(close=False)

    @property
    def address(self) -> str:
        """The URL with its password, for other processes. It names a file by its absolute path."""
        url = self._url.set(database=str(self._file)) if self.is_sqlite else self._url
        return url.render_as_string(hide_password=False)

    @property
    def is_missing(self) -> bool:
        """Whether it is a file that does not exist, in a folder that does. Opening it would create it."""
        if self._closed:
            raise LedgerError(f"{self.name} was closed")
        if not self.is_sqlite:
            return False
        try:
            self._file.stat()
        except (OSError, ValueError) as error:  # it may be there, in a folder that this user may not enter
            if isinstance(error, FileNotFoundError) and self._file.parent.is_dir():
                return True
            raise LedgerError(f"{self.name}: {NOT_OPENED}") from None
        return False

    def read(self) -> AbstractContextManager[Connection]:
        """A read-only transaction on one snapshot. It creates nothing; who may only read may read."""
        opening = _SQLITE_READ if self.is_sqlite else _POSTGRESQL_READ
        engine = self._engine if self.is_sqlite and self._may_write else self._reader
        return self._transaction(engine, opening, create=False)

    def write(self) -> AbstractContextManager[Connection]:
        """A write transaction: on disk when this returns, rolled back if anything is raised.

        On SQLite no other writer runs meanwhile. On PostgreSQL the caller locks the row that it relies on.
        """
        opening = _SQLITE_WRITE if self.is_sqlite else _POSTGRESQL_WRITE
        return self._transaction(self._engine, opening, create=not self._seen)

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
                raise LedgerError(f"{self.name}: {LOG_NEEDS_WRITING}") from None
            raise
        return connection

    def use_write_ahead_log(self) -> None:
        """Let readers of a SQLite file run while another process writes. The setting is kept in the file."""
        deadline = time.monotonic() + BUSY_SECONDS
        with self._failing():
            while True:
                try:
                    with self._turn(create=True), self._engine.connect() as connection:
                        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                except OperationalError as error:  # who switches at the same time may fail without a wait
                    if _advice(error.orig) != LOCKED or time.monotonic() >= deadline:
                        raise
                    time.sleep(0.02)
                else:
                    return

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True
        self._engine.dispose()  # a reader of SQLite pools nothing

    @contextmanager
    def _transaction(self, engine: Engine, opening: str, *, create: bool) -> Iterator[Connection]:
        if self.is_missing and self._seen:
            raise LedgerError(f"{self.name}: {GONE}")  # else SQLite would create an empty one
        with self._failing(), self._turn(create=create), engine.begin() as connection:
            connection.exec_driver_sql(opening)
            self._seen = True
            yield connection

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn every failure of the database into one `LedgerError`.

        It is raised `from None`: the drivers' errors may carry the URL and the statement's values.
        """
        try:
            yield
        except DPFewShotError:
            raise
        except (SQLAlchemyError, sqlite3.Error, OSError, ValueError, OverflowError) as error:
            raise LedgerError(f"{self.name}: {_describe(error, self._url)}") from None
        except BaseException as error:
            if not isinstance(error, Exception):
                self._engine.dispose()  # Ctrl-C may have left the only connection taken for good
            raise

    @contextmanager
    def _turn(self, *, create: bool) -> Iterator[None]:
        """Keep SQLite connections from overlapping: held from before one opens until after it closes."""
        if not self.is_sqlite:
            yield
            return
        with _one_at_a_time, ExitStack() as stack:
            try:
                check_names(self._file)
                held = stack.enter_context(locked(self._file, self._seconds, create=create))
                self._check_length(held)
            except LedgerError as error:
                raise LedgerError(f"{self.name}: {error}") from None
            except OSError:
                raise LedgerError(f"{self.name}: {NOT_OPENED}") from None
            yield

    def _check_length(self, descriptor: int) -> None:
        """Refuse half a page, whose rest SQLite would read as empty; it detects missing pages itself."""
        header = os.pread(descriptor, len(_HEADER) + 2, 0)
        page = int.from_bytes(header[len(_HEADER) :], "big")
        page = 65_536 if page == 1 else page  # SQLite's way to say so in two bytes
        if header.startswith(_HEADER) and page and os.fstat(descriptor).st_size % page:
            raise LedgerError(DAMAGED)


def _sqlite(url: URL, creator: Callable[[], sqlite3.Connection] | None = None) -> Engine:
    waiting = {} if "timeout" in url.query else {"timeout": BUSY_SECONDS}
    options = {"connect_args": waiting} if creator is None else {"creator": creator}
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, **options)

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

    @event.listens_for(engine, "invalidate")
    def give_up(connection: sqlite3.Connection, _record: Any, _error: Any) -> None:
        # after Ctrl-C in a statement SQLAlchemy closes without this, and an open cursor would keep the lock
        with suppress(sqlite3.Error):
            connection.rollback()

    return engine


def _postgresql(url: URL) -> Engine:
    try:
        return create_engine(
            url,
            poolclass=QueuePool,
            pool_size=1,  # threads take turns: a server supports as many processes as connections
            max_overflow=0,
            pool_timeout=BUSY_SECONDS,
            pool_pre_ping=True,  # the server may have restarted
            hide_parameters=True,
            # a stricter level would keep the snapshot from before the row lock, and overspend
            isolation_level="READ COMMITTED",
            connect_args={k: v for k, v in _POSTGRESQL_CONNECTION.items() if k not in url.query},
        )
    except ImportError:
        raise MissingExtra("a ledger in PostgreSQL", "postgresql") from None


# ---- where a ledger is

_DAY = 86_400

_EXAMPLES = '"sqlite:///budget.db" or "postgresql+psycopg://user@host/database"'


def _parsed(text: str) -> tuple[URL, str]:
    """A ledger's URL, with the password, and its name in messages. Refuses other databases, and memory."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # SQLAlchemy's own message may quote the whole text
        raise LedgerError(f"the ledger's URL cannot be read: write {_EXAMPLES}") from None
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        path = url.database or ""
        # a file: name may say mode=memory or nolock=1, which would void every guarantee here
        if path in ("", ":memory:") or path.startswith("file:"):
            raise LedgerError(
                f"a ledger must outlive its process: name a file, after three slashes, {_EXAMPLES}"
            )
        if set(url.query) - {"timeout"}:  # such as uri=true&mode=memory: another file, or none
            raise LedgerError("a SQLite ledger's URL takes one option, ?timeout=SECONDS")
        return url, f"the ledger {path!r}"
    if url.drivername in ("postgresql", "postgresql+psycopg"):
        url = url.set(drivername="postgresql+psycopg")
        # messages show the host and the database, so these must not contain part of a password
        if "@" in (url.host or "") or any(sign in (url.database or "") for sign in " =@"):
            raise LedgerError(f"the ledger's URL cannot be read: write {_EXAMPLES}, %40 for @ in a password")
        return url, f"the ledger {url.database!r} on {url.host or 'this host'}"
    raise LedgerError(f"a ledger cannot be kept in {url.drivername!r}: write {_EXAMPLES}")


def _seconds(url: URL) -> float:
    """How long to wait for another process: `?timeout=` of the URL, in seconds, 0 to a day."""
    given = url.query.get("timeout", BUSY_SECONDS)
    try:
        seconds = float(given) if not isinstance(given, tuple) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _DAY:
        raise LedgerError(f"the ledger's timeout must be a number of seconds from 0 to {_DAY}")
    return seconds


# ---- failures as one line that an operator can act on

DAMAGED = "the file is damaged: restore it from a copy, and count what was spent since"
NOT_OPENED = "the file cannot be opened: does its directory exist, and may it be written?"
LOG_NEEDS_WRITING = (
    "a log lies beside the file (-wal or -journal), which SQLite can read only where it may write: copy both "
    "to a folder of your own"
)
GONE = "the file is gone: restore it from a copy, and count what was spent since"
_BUSY_THREADS = "other threads of this process used it for too long; nothing was changed, try again later"

_ADVICE = {
    "SQLITE_BUSY": LOCKED,
    "SQLITE_CANTOPEN": NOT_OPENED,
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "the file cannot be read or written: is the disk full, or a limit reached?",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_READONLY": "the file or its directory cannot be written",
    "55P03": LOCKED,  # lock_not_available
    "40P01": LOCKED,  # deadlock_detected
    "42501": "this user lacks the privileges that a ledger needs",
}

_LONGEST = 300


def _describe(error: Exception, url: URL) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    advice = _BUSY_THREADS if isinstance(cause, NoConnection) else _advice(cause)
    if advice is not None:
        return advice
    if isinstance(cause, json.JSONDecodeError):
        return f"a row cannot be read: {VERIFY}"
    primary = getattr(getattr(cause, "diag", None), "message_primary", None)
    line = " ".join(str(primary or cause).split())[:_LONGEST]
    named = (str(value) for key, value in url.query.items() if "pass" in key.lower())
    secrets = [secret for secret in (str(url.password or ""), *named) if secret]
    return type(cause).__name__ if any(secret in line for secret in secrets) else line


def _advice(cause: BaseException | None) -> str | None:
    # extended names add words after the first two: SQLITE_BUSY_RECOVERY
    name = "_".join((getattr(cause, "sqlite_errorname", None) or "").split("_")[:2])
    return _ADVICE.get(name) or _ADVICE.get(getattr(cause, "sqlstate", None) or "")
