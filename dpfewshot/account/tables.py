"""The tables of the ledger, and how they are created.

Amounts are integers: ε and Rényi divergences in 10⁻¹², δ in 10⁻¹⁸.
Times (ISO 8601 in UTC) and JSON are text: both databases return it byte for byte, so that the history can be
hashed.
"""

from __future__ import annotations

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
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
)

from dpfewshot.account.database import Database
from dpfewshot.account.history import CANCELLED, CHARGED, RESERVED, SETTLED
from dpfewshot.errors import LedgerError

VERSION: Final = "0001"
"""Of these tables, as a ledger records it. Other columns need another version."""

_MIGRATION_LOCK: Final = 0x6470_6665_7773_686F  # "dpfewsho": PostgreSQL's advisory locks are numbers

# SQLite numbers rows only if the key is declared INTEGER, which holds 64 bits
_Number = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData()

migration = Table(  # as Alembic lays it out, so that it may migrate a ledger to a later version
    "dpfewshot_migration",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="dpfewshot_migration_pkc"),
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
        return _has_tables(connection, database.name)


def create_tables(database: Database) -> None:
    """Create the tables if they are missing. If several processes call it, one does the work."""
    if database.is_sqlite:
        database.use_write_ahead_log()
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        if not _has_tables(connection, database.name):  # another process may have been first
            metadata.create_all(connection)
            connection.execute(insert(migration).values(version_num=VERSION))


def _has_tables(connection: Connection, name: str) -> bool:
    if not inspect(connection).has_table(migration.name):
        return False
    found = connection.execute(select(migration.c.version_num)).scalars().all()
    if list(found) != [VERSION]:
        version = ", ".join(map(str, found)) or "unknown"
        raise LedgerError(
            f"{name} has tables of version {version}, this package knows version {VERSION}: "
            "install the version of dpfewshot that made it"
        )
    return True
