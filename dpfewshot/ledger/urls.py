"""The database that a ledger URL names, and its name in messages, which never has the password."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dpfewshot.errors import LedgerError

_DAY = 86_400

_EXAMPLES = '"sqlite:///budget.db" or "postgresql+psycopg://user@host/database"'


@dataclass(frozen=True)
class Place:
    """A database that can hold a ledger.

    Attributes:
        url: where it is, with its password.
        name: its name in messages.
        secrets: what no message may contain.
    """

    url: URL = field(repr=False)  # its repr hides the password, but not one in the query
    name: str
    secrets: frozenset[str] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read a ledger URL.

        Raises:
            LedgerError: it is not a URL, or names another kind of database, or one in memory.
        """
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            # SQLAlchemy's own message may quote the whole text
            raise LedgerError(f"the ledger's URL cannot be read: write {_EXAMPLES}") from None
        if url.drivername in ("sqlite", "sqlite+pysqlite"):
            name = _name_of_file(url)
            if set(url.query) - {"timeout"}:  # such as uri=true&mode=memory: another file, or none
                raise LedgerError("a SQLite ledger's URL takes one option, ?timeout=SECONDS")
            return cls(url, name, frozenset())
        if url.drivername in ("postgresql", "postgresql+psycopg"):
            url = url.set(drivername="postgresql+psycopg")
            _check_parts(url)
            return cls(url, f"the ledger {url.database!r} on {url.host or 'this host'}", _secrets(url))
        raise LedgerError(f"a ledger cannot be kept in {url.drivername!r}: write {_EXAMPLES}")

    @property
    def address(self) -> str:
        """The URL with its password, for other processes. It names a file by its absolute path."""
        url = (
            self.url.set(database=str(Path(self.url.database or "").absolute()))
            if self.is_sqlite
            else self.url
        )
        return url.render_as_string(hide_password=False)

    def seconds(self, default: float) -> float:
        """How long to wait for another process: `?timeout=` of the URL, in seconds.

        Raises:
            LedgerError: it is not a number from 0 to a day.
        """
        given = self.url.query.get("timeout", default)
        try:
            seconds = float(given) if not isinstance(given, tuple) else math.nan
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= _DAY:
            raise LedgerError(f"the ledger's timeout must be a number of seconds from 0 to {_DAY}")
        return seconds

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file on this host."""
        return self.url.get_backend_name() == "sqlite"


def _check_parts(url: URL) -> None:
    """Messages show the host and the database, so these must not contain part of a password."""
    if "@" in (url.host or "") or any(sign in (url.database or "") for sign in " =@"):
        raise LedgerError(f"the ledger's URL cannot be read: write {_EXAMPLES}, %40 for @ in a password")


def _name_of_file(url: URL) -> str:
    path = url.database or ""
    # a file: name may say mode=memory or nolock=1, which would void every guarantee here
    if path in ("", ":memory:") or path.startswith("file:"):
        raise LedgerError(f"a ledger must outlive its process: name a file, after three slashes, {_EXAMPLES}")
    return f"the ledger {path!r}"


def _secrets(url: URL) -> frozenset[str]:
    named = (str(value) for key, value in url.query.items() if "pass" in key.lower())
    return frozenset(secret for secret in (str(url.password or ""), *named) if secret)
