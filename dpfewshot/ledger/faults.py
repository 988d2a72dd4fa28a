"""Database failures as one line that an operator can act on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from dpfewshot.errors import DPFewShotError, LedgerError
from dpfewshot.ledger.counting import VERIFY
from dpfewshot.ledger.urls import Place

LOCKED = "another process held it for too long; nothing was changed, try again later"

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


@contextmanager
def as_ledger_errors(place: Place) -> Iterator[None]:
    """Turn every failure of the database into one `LedgerError`.

    It is raised `from None`: the drivers' errors may carry the URL and the statement's values.
    """
    try:
        yield
    except DPFewShotError:
        raise
    except (SQLAlchemyError, sqlite3.Error, OSError, ValueError, OverflowError) as error:
        raise LedgerError(f"{place.name}: {_describe(error, place)}") from None


def is_locked(error: DBAPIError) -> bool:
    """Whether the database was busy, so that the same call may succeed later."""
    return _advice(error.orig) == LOCKED


def _describe(error: Exception, place: Place) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    advice = _BUSY_THREADS if isinstance(cause, NoConnection) else _advice(cause)
    if advice is not None:
        return advice
    if isinstance(cause, json.JSONDecodeError):
        return f"a row cannot be read: {VERIFY}"
    primary = getattr(getattr(cause, "diag", None), "message_primary", None)
    line = " ".join(str(primary or cause).split())[:_LONGEST]
    if any(secret in line for secret in place.secrets):
        return type(cause).__name__
    return line


def _advice(cause: BaseException | None) -> str | None:
    # extended names add words after the first two: SQLITE_BUSY_RECOVERY
    name = "_".join((getattr(cause, "sqlite_errorname", None) or "").split("_")[:2])
    return _ADVICE.get(name) or _ADVICE.get(getattr(cause, "sqlstate", None) or "")
