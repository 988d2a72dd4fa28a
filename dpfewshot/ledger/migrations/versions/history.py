"""The second form: a history chained by hashes, settled entries, one recorded partition an account.

What the first form kept of an entry's past becomes the beginning of the history.
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from dpfewshot.budget.scopes import partition_of
from dpfewshot.ledger.history import NOTHING_BEFORE, HistoryEvent, chained
from dpfewshot.ledger.migrations.versions.accounts_and_entries import entry_columns
from dpfewshot.ledger.tables import history

revision = "0002"
down_revision = "0001"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_ACTOR = "a ledger of the first form, which kept no names"
_ACTS = {"charged": "charge", "cancelled": "cancel"}


def upgrade() -> None:
    """Add the history, fill it, and move what entries kept of their past there."""
    op.add_column("dpfewshot_account", sa.Column("partition", sa.Text))
    op.add_column(
        "dpfewshot_account", sa.Column("parallel", sa.Boolean, nullable=False, server_default=sa.true())
    )
    op.create_table(
        "dpfewshot_history",
        sa.Column(
            "account_id",
            _NUMBER,
            sa.ForeignKey("dpfewshot_account.id"),
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
    )
    _fill()
    _shorten_entries()
    op.execute("UPDATE dpfewshot_schema SET version = 2")


def _fill() -> None:
    connection = op.get_bind()
    for account in connection.execute(sa.text("SELECT * FROM dpfewshot_account")).all():
        found = connection.execute(
            sa.text("SELECT * FROM dpfewshot_entry WHERE account_id = :id ORDER BY id"), {"id": account.id}
        ).all()
        words = {
            "dataset": account.dataset,
            "relation": account.relation,
            "unit": account.unit,
            "parallel": True,
        }
        acts = [
            _act(
                account,
                account.created_at,
                "create",
                amounts=account,
                details=json.dumps(words, sort_keys=True),
            )
        ]
        for entry in found:
            reserved = _act(entry, entry.reserved_at, "reserve", entry, amounts=entry, details=entry.details)
            acts.append(reserved)
            if entry.state in _ACTS:
                acts.append(_act(entry, entry.settled_at, _ACTS[entry.state], entry))
        previous = NOTHING_BEFORE
        for number, act in enumerate(acts, start=1):
            row = chained(act, number, previous)
            connection.execute(sa.insert(history).values(account_id=account.id, **row))
            previous = row["hash"]
        partitions = [partition_of(entry.scope) for entry in found if entry.scope is not None]
        if partitions:
            connection.execute(
                sa.text("UPDATE dpfewshot_account SET partition = :partition WHERE id = :id"),
                {"partition": partitions[0], "id": account.id},
            )


def _act(
    source: Any,
    at: str,
    act: str,
    entry: Any | None = None,
    *,
    amounts: Any | None = None,
    details: str = "{}",
) -> HistoryEvent:
    return HistoryEvent(
        act=act,
        at=at,
        actor=_ACTOR,
        entry=entry.id if entry else None,
        scope=entry.scope if entry else None,
        epsilon=amounts.epsilon if amounts else None,
        delta=amounts.delta if amounts else None,
        details=details,
        package_version=source.package_version,
    )


def _shorten_entries() -> None:
    first_form = sa.Table(
        "dpfewshot_entry",
        sa.MetaData(),
        *entry_columns(),
        sa.Index("dpfewshot_entry_by_account", "account_id"),
    )
    # SQLite cannot change a constraint: Alembic copies the table there
    with op.batch_alter_table("dpfewshot_entry", copy_from=first_form) as batch:
        batch.drop_constraint("dpfewshot_entry_state", type_="check")
        batch.create_check_constraint(
            "dpfewshot_entry_state", "state IN ('reserved', 'charged', 'settled', 'cancelled')"
        )
        for column in ("details", "reserved_at", "settled_at", "package_version"):
            batch.drop_column(column)
