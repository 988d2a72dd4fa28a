"""The version of the tables: detected, or created with Alembic, which is imported only for that."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Final

from sqlalchemy import Connection, inspect, select, text

from dpfewshot.errors import LedgerError, MissingExtra
from dpfewshot.ledger.database import Database
from dpfewshot.ledger.tables import migration

NEWEST: Final = "0001"
"""The migration that makes the tables of `tables`."""

_MIGRATION_LOCK: Final = 0x6470_6665_7773_686F  # "dpfewsho": PostgreSQL's advisory locks are numbers


def is_there(database: Database) -> bool:
    """Whether there is a ledger. Reads, and changes nothing.

    Raises:
        LedgerError: another version of this package created it, or the database fails.
    """
    if database.is_missing:
        return False
    with database.read() as connection:
        return _has_tables(connection, database.place.name)


def create_tables(database: Database) -> None:
    """Create the tables if they are missing. If several processes call it, one does the work.

    Raises:
        LedgerError: another version of this package created them, or the database fails; nothing is changed.
    """
    if database.place.is_sqlite:
        database.use_write_ahead_log()
    with database.write() as connection:
        if not database.place.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        if not _has_tables(connection, database.place.name):  # another process may have been first
            _migrate(connection)


def _has_tables(connection: Connection, name: str) -> bool:
    if not inspect(connection).has_table(migration.name):
        return False
    found = connection.execute(select(migration.c.version_num)).scalar_one()
    if found != NEWEST:
        raise LedgerError(
            f"{name} has tables of version {found}, this package knows version {NEWEST}: "
            "install the version of dpfewshot that made it"
        )
    return True


@contextmanager
def _warnings_alone() -> Iterator[None]:
    """Keep Alembic from logging each step, unless the program configures its logger."""
    logger = logging.getLogger("alembic")
    own = [one for one in logger.handlers if not isinstance(one, logging.NullHandler)]  # Alembic adds that
    if own or logger.level != logging.NOTSET:
        yield
        return
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)


def _migrate(connection: Connection) -> None:
    with _warnings_alone():  # also while it is imported
        try:
            from alembic import command
            from alembic.config import Config
        except ModuleNotFoundError:
            raise MissingExtra("making or migrating a ledger", "ledger") from None
        with resources.as_file(resources.files("dpfewshot.ledger") / "migrations") as folder:
            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", str(folder).replace("%", "%%"))
            config.set_main_option("path_separator", "os")
            command.upgrade(config, NEWEST)
