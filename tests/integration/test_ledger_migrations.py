"""Ledgers of older forms are migrated with all they hold; those of newer forms are refused."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from dpfewshot.budget.draws import DrawCounts
from dpfewshot.budget.scopes import scope_name
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.ledger import BudgetLedger, history
from dpfewshot.ledger.database import Database
from dpfewshot.ledger.tables import metadata, migration
from dpfewshot.values import PrivacyBudget, PrivacySpend

# What the first form made, word for word as SQLite kept it. On PostgreSQL its keys were numbered likewise.
FIRST_FORM = """
CREATE TABLE dpfewshot_schema (version INTEGER NOT NULL, PRIMARY KEY (version));
CREATE TABLE dpfewshot_account (
    id {key} NOT NULL, dataset TEXT NOT NULL, epsilon BIGINT NOT NULL, delta BIGINT NOT NULL,
    relation TEXT NOT NULL, unit TEXT, created_at TEXT NOT NULL, package_version TEXT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT dpfewshot_account_amounts CHECK (epsilon > 0 AND delta > 0),
    UNIQUE (dataset));
CREATE TABLE dpfewshot_entry (
    id {key} NOT NULL, account_id {number} NOT NULL, scope TEXT,
    epsilon BIGINT NOT NULL, delta BIGINT NOT NULL,
    state TEXT NOT NULL, details TEXT NOT NULL, reserved_at TEXT NOT NULL, settled_at TEXT,
    package_version TEXT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT dpfewshot_entry_amounts CHECK (epsilon >= 0 AND delta >= 0),
    CONSTRAINT dpfewshot_entry_state CHECK (state IN ('reserved', 'charged', 'cancelled')),
    FOREIGN KEY(account_id) REFERENCES dpfewshot_account (id));
CREATE INDEX dpfewshot_entry_by_account ON dpfewshot_entry (account_id);
INSERT INTO dpfewshot_schema VALUES (1);
INSERT INTO dpfewshot_account (dataset, epsilon, delta, relation, unit, created_at, package_version)
    VALUES ('tickets', 1000000000000, 10000000000000, 'zero-out', NULL, '2026-01-01', '0.1.0'),
           ('notes', 2000000000000, 10000000000000, 'add-remove', 'unit', '2026-01-02', '0.1.0');
INSERT INTO dpfewshot_entry
    (account_id, scope, epsilon, delta, state, details, reserved_at, settled_at, package_version)
    VALUES (1, 'trec: Location', 300000000000, 1, 'charged', '{{"steps": 15}}', 'a', 'b', '0.1.0'),
           (2, NULL, 500000000000, 0, 'reserved', '{{}}', 'c', NULL, '0.1.0'),
           (1, 'mood: glad', 200000000000, 0, 'reserved', '{{}}', 'd', NULL, '0.1.0'),
           (1, 'trec: Number', 600000000000, 0, 'cancelled', '{{}}', 'e', 'f', '0.1.0');
"""


@pytest.fixture
def old(ledger_url: str) -> str:
    """A ledger as the first form left it."""
    url = ledger_url
    if url.startswith("sqlite"):
        execute(url, FIRST_FORM.format(key="INTEGER", number="INTEGER"))
    else:
        execute(url, FIRST_FORM.format(key="BIGSERIAL", number="BIGINT"))
    return url


def execute(url: str, statements: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)


def new(url: str) -> None:
    with BudgetLedger.open(url) as ledger:
        ledger.create("tickets", PrivacyBudget(1.0, 1e-5))


def differences(url: str) -> list[object]:
    with Database(url).read() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)


def test_a_new_ledger_has_the_tables_that_the_code_describes(ledger_url: str) -> None:
    new(ledger_url)
    assert differences(ledger_url) == []


def test_a_ledger_of_the_first_form_keeps_all_that_it_holds(old: str) -> None:
    with BudgetLedger.open(old) as ledger:
        assert ledger.datasets() == ["notes", "tickets"]
        tickets, notes = ledger.account("tickets"), ledger.account("notes")
        assert tickets.budget == PrivacyBudget(1.0, 1e-5)
        assert tickets.spent == PrivacySpend(0.5, 1e-18)  # partitions that were there already still add
        assert (notes.relation, notes.unit, notes.spent) == ("add-remove", "unit", PrivacySpend(0.5, 0.0))
        assert [row["act"] for row in tickets.history()] == [
            "create",
            "reserve",
            "charge",
            "reserve",
            "reserve",
            "cancel",
        ]
        assert tickets.history()[1]["details"] == {"steps": 15}
        assert [row["at"] for row in tickets.history()][1:] == ["a", "b", "d", "e", "f"]
        for account in (tickets, notes):
            assert account.verify().problems == ()
    assert differences(old) == []


def test_a_ledger_of_the_first_form_still_works(old: str) -> None:
    with BudgetLedger.open(old) as ledger:
        account = ledger.account("tickets")
        account.charge(3)
        account.settle(3)
        account.cancel(1)  # it drew: nothing comes back
        with pytest.raises(LedgerError, match="'trec'"):
            account.reserve("mood: sad", PrivacySpend(0.1, 0.0), {})
        assert account.reserve("trec: Number", PrivacySpend(0.8, 0.0), {}) == 5
        with pytest.raises(BudgetExceeded):
            account.reserve("trec: Number", PrivacySpend(0.1, 0.0), {})
        assert account.verify().problems == ()


def test_an_entry_of_before_counts_no_draws_and_cannot_be_resumed(old: str) -> None:
    with BudgetLedger.open(old) as ledger:
        account = ledger.account("tickets")
        with pytest.raises(LedgerError, match="did not grant the draws"):
            account.resume(
                1, "trec: Location", PrivacySpend(0.3, 1e-18), {"steps": 15},
                known=["first", ""], draws=DrawCounts((15,), "second"),
            )  # fmt: skip
        with pytest.raises(LedgerError, match="counts no draws"):
            account.draw(1, "first", 0)
        assert account.spent == PrivacySpend(0.5, 1e-18)
        assert account.verify().problems == ()


def test_what_was_spent_before_label_sets_were_recorded_adds(old: str) -> None:
    with BudgetLedger.open(old) as ledger:
        account = ledger.account("tickets")
        account.reserve(scope_name("trec", ["Location", "Number"], "Number"), PrivacySpend(0.25, 0.0), {})
        account.reserve(scope_name("trec", ["Location", "Number"], "Location"), PrivacySpend(0.5, 0.0), {})
        assert account.spent == PrivacySpend(1.0, 1e-18)  # trec 0.3 and mood 0.2 of then, the greatest of now
        for scope in ("trec: Number", scope_name("trec", ["Number"], "Number")):
            with pytest.raises(LedgerError, match="another way"):
                account.reserve(scope, PrivacySpend(0.0, 0.0), {})
        assert account.verify().problems == ()


def test_the_first_form_of_the_code_refuses_what_was_migrated(old: str) -> None:
    BudgetLedger.open(old).close()
    with Database(old).read() as connection:
        # this is how it looked, and anything but 1 it refused
        assert connection.exec_driver_sql("SELECT version FROM dpfewshot_schema").scalar_one() == 2


def test_a_ledger_of_a_newer_package_is_refused(ledger_url: str) -> None:
    new(ledger_url)
    execute(ledger_url, "UPDATE dpfewshot_migration SET version_num = '9999'")
    with pytest.raises(LedgerError, match=r"version 9999.*version 0005: install"):
        BudgetLedger.open(ledger_url)


def test_a_migration_that_fails_changes_nothing(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> None:
        raise OSError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(history, "hash_of", fails)
        with pytest.raises(LedgerError, match="in the middle"):
            BudgetLedger.open(old)
    with Database(old).read() as connection:
        assert not sa.inspect(connection).has_table(migration.name)
        assert not sa.inspect(connection).has_table("dpfewshot_history")
    with BudgetLedger.open(old) as ledger:
        assert ledger.account("tickets").verify().ok
