"""The tables of the ledger, and how they are created.

Amounts are integers: ε and Rényi divergences in 10⁻¹², δ in 10⁻¹⁸.
Times (ISO 8601 in UTC) and JSON are text: both databases return it byte for byte, so that the history can be
hashed.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from dpfewshot.account.database import Database
from dpfewshot.account.history import CANCELLED, CHARGED, RESERVED, SETTLED
from dpfewshot.errors import LedgerError

VERSION: Final = "0001"
"""Of these tables, as a ledger records it. Other columns need another version."""

_MIGRATION_LOCK: Final = 0x6470_6665_7773_686F  # "dpfewsho": PostgreSQL's advisory locks are numbers

# SQLite numbers rows only if the key is declared INTEGER, which holds 64 bits
_Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

metadata = sa.MetaData()

migration = sa.Table(  # as Alembic lays it out, so that it may migrate a ledger to a later version
    "dpfewshot_migration",
    metadata,
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="dpfewshot_migration_pkc"),
)

accounts = sa.Table(
    "dpfewshot_account",
    metadata,
    sa.Column("id", _Number, primary_key=True),
    sa.Column("dataset", sa.Text, nullable=False, unique=True),
    sa.Column("epsilon", sa.BigInteger, nullable=False),
    sa.Column("delta", sa.BigInteger, nullable=False),
    sa.Column("relation", sa.Text, nullable=False),
    sa.Column("unit", sa.Text),
    sa.Column("partition", sa.Text),
    sa.Column("parallel", sa.Boolean, nullable=False),
    sa.Column("renyi_order", sa.Integer),
    sa.Column("sums", sa.Text, nullable=False),  # running totals: a reservation need not add up all entries
    sa.Column("events", sa.BigInteger, nullable=False),  # rows of its history
    sa.Column("chain_tip", sa.Text, nullable=False),  # the hash of the last one
    sa.Column("seal", sa.Text, nullable=False),  # a hash over this row
    sa.CheckConstraint("epsilon > 0 AND delta > 0", name="dpfewshot_account_amounts"),
)

entries = sa.Table(
    "dpfewshot_entry",
    metadata,
    sa.Column("id", _Number, primary_key=True),
    sa.Column("account_id", _Number, sa.ForeignKey(accounts.c.id), nullable=False),
    sa.Column("scope", sa.Text),
    sa.Column("epsilon", sa.BigInteger, nullable=False),
    sa.Column("delta", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("draws_left", sa.BigInteger),
    sa.Column("lease", sa.Text),
    sa.Column("progress", sa.Text),  # what its run has released: public
    sa.Column("plan", sa.Text),
    sa.Column("run", sa.Text),
    sa.Column("stratum", sa.Integer),
    sa.Column("draws_hash", sa.Text),  # a hash over the six before
    sa.Column("renyi", sa.BigInteger),
    sa.CheckConstraint("epsilon >= 0 AND delta >= 0", name="dpfewshot_entry_amounts"),
    sa.CheckConstraint(
        f"state IN ('{RESERVED}', '{CHARGED}', '{SETTLED}', '{CANCELLED}')", name="dpfewshot_entry_state"
    ),
    sa.Index("dpfewshot_entry_by_account", "account_id", "plan"),
    sa.UniqueConstraint("account_id", "run", "stratum", name="dpfewshot_entry_of_run"),
)

history = sa.Table(  # rows are added and never changed
    "dpfewshot_history",
    metadata,
    sa.Column("account_id", _Number, sa.ForeignKey(accounts.c.id), primary_key=True, autoincrement=False),
    sa.Column("number", _Number, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("act", sa.Text, nullable=False),
    sa.Column("entry", sa.BigInteger),
    sa.Column("scope", sa.Text),
    sa.Column("epsilon", sa.BigInteger),
    sa.Column("delta", sa.BigInteger),
    sa.Column("details", sa.Text, nullable=False),
    sa.Column("package_version", sa.Text, nullable=False),
    sa.Column("previous", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("renyi", sa.BigInteger),
    sa.Index("dpfewshot_history_by_entry", "account_id", "entry"),
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
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        if not _has_tables(connection, database.name):  # another process may have been first
            metadata.create_all(connection)
            connection.execute(sa.insert(migration).values(version_num=VERSION))


def _has_tables(connection: sa.Connection, name: str) -> bool:
    if not sa.inspect(connection).has_table(migration.name):
        return False
    found = connection.execute(sa.select(migration.c.version_num)).scalars().all()
    if list(found) != [VERSION]:
        version = ", ".join(map(str, found)) or "unknown"
        raise LedgerError(
            f"{name} has tables of version {version}, this package knows version {VERSION}: "
            "install the version of dpfewshot that made it"
        )
    return True
