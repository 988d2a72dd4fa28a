"""The tables of the ledger. Amounts are integers (ε and Rényi divergences in 10⁻¹², δ in 10⁻¹⁸).

Times (ISO 8601 in UTC) and JSON are text: both databases return it byte for byte, so that the history can be
hashed.
`migrations` makes these tables.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from dpfewshot.ledger.history import CANCELLED, CHARGED, RESERVED, SETTLED

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
    Column("created_at", Text, nullable=False),
    Column("package_version", Text, nullable=False),
    Column("partition", Text),
    Column("parallel", Boolean, nullable=False),
    Column("renyi_order", Integer),
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
    Column("blocks", Text),
    Column("lease", Text),
    Column("draws_hash", Text),
    Column("renyi", BigInteger),
    CheckConstraint("epsilon >= 0 AND delta >= 0", name="dpfewshot_entry_amounts"),
    CheckConstraint(
        f"state IN ('{RESERVED}', '{CHARGED}', '{SETTLED}', '{CANCELLED}')", name="dpfewshot_entry_state"
    ),
    Index("dpfewshot_entry_by_account", "account_id"),
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

running_totals = Table(  # derived from the history
    "dpfewshot_totals",
    metadata,
    Column("account_id", _Number, ForeignKey(accounts.c.id), primary_key=True, autoincrement=False),
    Column("sums", Text, nullable=False),
    Column("seal", Text, nullable=False),
)
