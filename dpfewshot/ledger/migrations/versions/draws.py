"""The third form: an entry counts its draws and names the run that may make them.

How many draws older entries made is not known. They stay spent, and none of them can be resumed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns, empty."""
    for name in ("blocks", "lease", "draws_hash"):
        op.add_column("dpfewshot_entry", sa.Column(name, sa.Text))
