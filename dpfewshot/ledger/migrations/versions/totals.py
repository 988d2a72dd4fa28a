"""The fifth form: running totals of each account, and an index that finds the events of an entry.

The totals of older accounts are missing. The first change of an account adds them up from its history.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table, empty, and the index."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "dpfewshot_totals",
        sa.Column(
            "account_id",
            number,
            sa.ForeignKey("dpfewshot_account.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("sums", sa.Text, nullable=False),
        sa.Column("seal", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_index(
        "dpfewshot_history_by_entry", "dpfewshot_history", ["account_id", "entry"], if_not_exists=True
    )
