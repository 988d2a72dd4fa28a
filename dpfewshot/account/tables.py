"""The tables of the ledger, and how they are created.

Amounts are integers: ε and Rényi divergences in 10⁻¹², δ in 10⁻¹⁸.
Times (ISO 8601 in UTC) and JSON are text: both databases return it byte for byte, so that the history can be
hashed.
`migrations` makes these tables, with Alembic, which is imported only for that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
    text,
)

from dpfewshot.account.database import Database
from dpfewshot.account.history import CANCELLED, CHARGED, RESERVED, SETTLED
from dpfewshot.errors import LedgerError, MissingExtra

NEWEST: Final = "0001"
"""The migration that makes the tables of `tables`."""

_MIGRATION_LOCK: Final = 0x6470_6665_7773_686F  # "dpfewsho": PostgreSQL's advisory locks are numbers

# SQLite numbers rows only if the key is declared INTEGER, which holds 64 bits
_Number = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData()

migration = Table(  # Alembic's own: which migration was the last
    "dpfewshot_migration",
    metadata,
    Column("version_num", String(32), primary_key=True),
)

accounts = Table(
    "dpfewshot_account",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("dataset", Text, nullable=False, unique=True),
    Column("epsilon", BigInteger, nullable=False),
    Column("delta", BigInteger, nullable=False),
    Column("relation", Text, nullable=False),
    Column("unit", Text),
    Column("partition", Text),
    Column("parallel", Boolean, nullable=False),
    Column("renyi_order", Integer),
    Column("sums", Text, nullable=False),  # running totals, so that a reservation need not add up all entries
    Column("events", BigInteger, nullable=False),  # rows of its history
    Column("chain_tip", Text, nullable=False),  # the hash of the last one
    Column("seal", Text, nullable=False),  # a hash over this row
    CheckConstraint("epsilon > 0 AND delta > 0", name="dpfewshot_account_amounts"),
)

entries = Table(
    "dpfewshot_entry",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("account_id", _Number, ForeignKey(accounts.c.id), nullable=False),
    Column("scope", Text),
    Column("epsilon", BigInteger, nullable=False),
    Column("delta", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("draws_left", BigInteger),
    Column("lease", Text),
    Column("progress", Text),  # what its run has released: public
    Column("plan", Text),
    Column("run", Text),
    Column("stratum", Integer),
    Column("draws_hash", Text),  # a hash over the six before
    Column("renyi", BigInteger),
    CheckConstraint("epsilon >= 0 AND delta >= 0", name="dpfewshot_entry_amounts"),
    CheckConstraint(
        f"state IN ('{RESERVED}', '{CHARGED}', '{SETTLED}', '{CANCELLED}')", name="dpfewshot_entry_state"
    ),
    Index("dpfewshot_entry_by_account", "account_id", "plan"),
    UniqueConstraint("account_id", "run", "stratum", name="dpfewshot_entry_of_run"),
)

history = Table(  # rows are added and never changed
    "dpfewshot_history",
    metadata,
    Column("account_id", _Number, ForeignKey(accounts.c.id), primary_key=True, autoincrement=False),
    Column("number", _Number, primary_key=True, autoincrement=False),
    Column("at", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("act", Text, nullable=False),
    Column("entry", BigInteger),
    Column("scope", Text),
    Column("epsilon", BigInteger),
    Column("delta", BigInteger),
    Column("details", Text, nullable=False),
    Column("package_version", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("renyi", BigInteger),
    Index("dpfewshot_history_by_entry", "account_id", "entry"),
)


def is_there(database: Database) -> bool:
    """Whether there is a ledger, of this version of the package. Reads, and changes nothing."""
    if database.is_missing:
        return False
    with database.read() as connection:
        return _has_tables(connection, database.place.name)


def create_tables(database: Database) -> None:
    """Create the tables if they are missing. If several processes call it, one does the work."""
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
        with resources.as_file(resources.files("dpfewshot.account") / "migrations") as folder:
            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", str(folder).replace("%", "%%"))
            config.set_main_option("path_separator", "os")
            command.upgrade(config, NEWEST)
