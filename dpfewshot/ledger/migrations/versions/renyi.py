"""The fourth form: an account may count by Rényi divergences of one order, which entries and events state.

Older accounts have no order: they count by sums of (ε, δ), as they always did.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns, empty."""
    op.add_column("dpfewshot_account", sa.Column("renyi_order", sa.Integer))
    for table in ("dpfewshot_entry", "dpfewshot_history"):
        op.add_column(table, sa.Column("renyi", sa.BigInteger))
