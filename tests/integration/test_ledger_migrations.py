"""The tables are those that the code describes; those of another version are refused, and not touched."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from dpfewshot.account.database import Database
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.tables import metadata, migration
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget


def execute(url: str, statement: sa.Executable) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(statement)


def new(url: str) -> None:
    with BudgetLedger.open(url) as ledger:
        ledger.create("tickets", PrivacyBudget(1.0, 1e-5))


def test_a_new_ledger_has_the_tables_that_the_code_describes(ledger_url: str) -> None:
    new(ledger_url)
    with Database(ledger_url).read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("version", ["9999", "0000"])
def test_a_ledger_of_another_version_is_refused_and_left_alone(ledger_url: str, version: str) -> None:
    new(ledger_url)
    execute(ledger_url, sa.update(migration).values(version_num=version))
    with pytest.raises(LedgerError, match=rf"version {version}.*version 0001: install"):
        BudgetLedger.open(ledger_url)
    with Database(ledger_url).read() as connection:
        assert connection.exec_driver_sql("SELECT * FROM dpfewshot_migration").all() == [(version,)]


def test_a_creation_that_fails_changes_nothing(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> None:
        raise OSError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_index", fails)
        with pytest.raises(LedgerError, match="in the middle"):
            new(ledger_url)
    with Database(ledger_url).read() as connection:
        assert sa.inspect(connection).get_table_names() == []
    new(ledger_url)
