"""The first form of the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_ACCOUNT = "dpfewshot_account.id"


def upgrade() -> None:
    """Create the tables. What they hold: `dpfewshot.account.tables`."""
    op.create_table(
        "dpfewshot_account",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("dataset", sa.Text, nullable=False, unique=True),
        sa.Column("epsilon", sa.BigInteger, nullable=False),
        sa.Column("delta", sa.BigInteger, nullable=False),
        sa.Column("relation", sa.Text, nullable=False),
        sa.Column("unit", sa.Text),
        sa.Column("partition", sa.Text),
        sa.Column("parallel", sa.Boolean, nullable=False),
        sa.Column("renyi_order", sa.Integer),
        sa.Column("sums", sa.Text, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
        sa.Column("chain_tip", sa.Text, nullable=False),
        sa.Column("seal", sa.Text, nullable=False),
        sa.CheckConstraint("epsilon > 0 AND delta > 0", name="dpfewshot_account_amounts"),
    )
    op.create_table(
        "dpfewshot_entry",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("account_id", _NUMBER, sa.ForeignKey(_ACCOUNT), nullable=False),
        sa.Column("scope", sa.Text),
        sa.Column("epsilon", sa.BigInteger, nullable=False),
        sa.Column("delta", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("draws_left", sa.BigInteger),
        sa.Column("lease", sa.Text),
        sa.Column("progress", sa.Text),
        sa.Column("plan", sa.Text),
        sa.Column("run", sa.Text),
        sa.Column("stratum", sa.Integer),
        sa.Column("draws_hash", sa.Text),
        sa.Column("renyi", sa.BigInteger),
        sa.CheckConstraint("epsilon >= 0 AND delta >= 0", name="dpfewshot_entry_amounts"),
        sa.CheckConstraint(
            "state IN ('reserved', 'charged', 'settled', 'cancelled')", name="dpfewshot_entry_state"
        ),
        sa.UniqueConstraint("account_id", "run", "stratum", name="dpfewshot_entry_of_run"),
    )
    op.create_index("dpfewshot_entry_by_account", "dpfewshot_entry", ["account_id", "plan"])
    op.create_table(
        "dpfewshot_history",
        sa.Column(
            "account_id",
            _NUMBER,
            sa.ForeignKey(_ACCOUNT),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
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
    )
    op.create_index("dpfewshot_history_by_entry", "dpfewshot_history", ["account_id", "entry"])
