"""The row of an account: found by its name, and compared with what was found from then on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.rule import Rule
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import VERIFY
from dpfewshot.ledger.tables import accounts


@dataclass(frozen=True)
class StoredAccount:
    """The columns of an account that never change."""

    number: int
    dataset: str
    relation: str
    unit: str | None
    parallel: bool
    rule: Rule


def find(connection: Connection, dataset: str) -> StoredAccount | None:
    """The account of a data set."""
    row = connection.execute(select(accounts).where(accounts.c.dataset == dataset)).one_or_none()
    return None if row is None else _stored(row)


def lock(connection: Connection, account: StoredAccount) -> tuple[Amount, str | None]:
    """Lock the account until this transaction ends, and return its limit and partition.

    Raises:
        LedgerError: its number belongs to another account: the ledger was replaced, or it was
            tampered with.
    """
    found = select(accounts).where(accounts.c.id == account.number).with_for_update()
    row = connection.execute(found).one_or_none()
    if row is None or _stored(row) != account:
        raise LedgerError(
            f"the account of the data set {account.dataset!r} is not as it was opened: its ledger was "
            f"replaced, or it was tampered with. Open it again, or {VERIFY}"
        )
    return Amount(row.epsilon, row.delta), row.partition


def _stored(row: Row[Any]) -> StoredAccount:
    return StoredAccount(
        row.id, row.dataset, row.relation, row.unit, bool(row.parallel), Rule(row.renyi_order)
    )


def change_account(connection: Connection, account: int, **values: int | str) -> None:
    """Change columns of an account."""
    connection.execute(update(accounts).where(accounts.c.id == account).values(**values))
