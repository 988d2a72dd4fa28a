"""The version of the tables: detected, created or migrated with Alembic, which is imported only for that."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Final

from sqlalchemy import Connection, inspect, select, text

from dpfewshot.errors import LedgerError, MissingExtra
from dpfewshot.ledger.database import Database
from dpfewshot.ledger.tables import first_form, migration

NEWEST: Final = "0005"
"""The migration that makes the tables of `tables`."""

_OLDER: Final = ("0001", "0002", "0003", "0004")
_FIRST_FORM: Final = 1
_MIGRATION_LOCK: Final = 0x6470_6665_7773_686F  # "dpfewsho": PostgreSQL's advisory locks are numbers


def is_there(database: Database) -> bool:
    """Whether there is a ledger; an older one is migrated. Creates nothing.

    Raises:
        LedgerError: a newer package created it, or the database fails; nothing is changed.
    """
    if database.is_missing:
        return False
    with database.read() as connection:
        found = _version(connection)
    if found is not None:
        bring_up_to_date(database)
    return found is not None


def bring_up_to_date(database: Database) -> None:
    """Create the tables, or migrate older ones. If several processes call it, one does the work.

    Raises:
        LedgerError: a newer package created them, or the database fails; nothing is changed.
    """
    with database.read() as connection:
        if _is_newest(connection, database.place.name):
            return
    if database.place.is_sqlite:
        database.use_write_ahead_log()
    with database.write() as connection:
        if not database.place.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        if not _is_newest(connection, database.place.name):  # another process may have been first
            _migrate(connection)


def _is_newest(connection: Connection, name: str) -> bool:
    found = _version(connection)
    if found is None or found in _OLDER:
        return False
    if found == NEWEST:
        return True
    raise LedgerError(
        f"{name} has tables of version {found}, this package knows version {NEWEST}: "
        "install the version of dpfewshot that made it, or a newer one"
    )


def _version(connection: Connection) -> str | None:
    tables = inspect(connection)
    if tables.has_table(migration.name):
        return str(connection.execute(select(migration.c.version_num)).scalar_one())
    if tables.has_table(first_form.name):  # from before Alembic
        number = connection.execute(select(first_form.c.version)).scalar_one()
        return _OLDER[0] if number == _FIRST_FORM else str(number)
    return None


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
