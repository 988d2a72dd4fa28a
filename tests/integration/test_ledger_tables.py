"""The tables of this version are frozen; those of another version are refused, and not touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from dpfewshot.account.database import Database
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.tables import VERSION, migration
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget
from tests.support.ledgers import rows

TABLES = Path(__file__).with_name("ledger_tables.sql")


def execute(url: str, statement: sa.Executable) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(statement)


def new(url: str) -> None:
    with BudgetLedger.open(url) as ledger:
        ledger.create("tickets", PrivacyBudget(1.0, 1e-5))


def test_a_new_ledger_has_the_tables_of_its_version(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    new(f"sqlite:///{path}")
    statements = rows(path, "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    made = (
        "".join(f"{statement};\n" for (statement,) in statements).replace("\t", "    ").replace(" \n", "\n")
    )
    assert made == TABLES.read_text()
    assert rows(path, "SELECT * FROM dpfewshot_migration") == [(VERSION,)]


@pytest.mark.parametrize("version", ["9999", "0000"])
def test_a_ledger_of_another_version_is_refused_and_left_alone(ledger_url: str, version: str) -> None:
    new(ledger_url)
    execute(ledger_url, sa.update(migration).values(version_num=version))
    with pytest.raises(LedgerError, match=rf"version {version}.*version 0001: install"):
        BudgetLedger.open(ledger_url)
    with Database(ledger_url).read() as connection:
        assert connection.exec_driver_sql("SELECT * FROM dpfewshot_migration").all() == [(version,)]


def test_a_creation_that_fails_changes_nothing(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object, **_named: object) -> None:
        raise OSError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr("sqlalchemy.sql.ddl.SchemaGenerator.visit_index", fails)
        with pytest.raises(LedgerError, match="in the middle"):
            new(ledger_url)
    with Database(ledger_url).read() as connection:
        assert sa.inspect(connection).get_table_names() == []
    new(ledger_url)
