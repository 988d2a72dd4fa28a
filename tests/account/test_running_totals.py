"""Running totals are the sums over all entries, whatever happened, under both rules and over all scopes."""

import sqlite3
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.account import sql
from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Cost
from dpfewshot.account.database import Database
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.rule import Totals
from dpfewshot.account.sql import sealed_totals, totals_in_entries
from dpfewshot.account.tables import accounts
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.account.test_account_rules import WEEKLY
from tests.support.accounts import resume

BUDGET = PrivacyBudget(8.0, 1e-3)
COSTS = (PrivacySpend(0.3, 1e-6), PrivacySpend(0.0, 0.0), PrivacySpend(3.0, 0.0), WEEKLY)
SCOPES = (None, "trec: Location", "trec: Number")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.sampled_from(SCOPES), st.sampled_from(COSTS)),
        st.tuples(
            st.sampled_from(["draw", "progress", "settle", "cancel", "resume"]), st.none(), st.integers(0, 3)
        ),
        st.tuples(st.sampled_from(["change the budget", "lose the totals"]), st.none(), st.none()),
    ),
    max_size=16,
)


def stored(url: str) -> tuple[Totals | None, Totals]:
    """The running totals, and those of the entries."""
    with closing(Database(url)) as database, database.read() as connection:
        row = dict(connection.execute(accounts.select()).mappings().one())
        return sealed_totals(row), totals_in_entries(connection, 1)


@settings(max_examples=12)
@given(st.sampled_from(["sum", "renyi"]), st.sampled_from(["zero-out", "add-remove"]), steps)
def test_running_totals_are_the_sums_over_the_entries(rule: str, relation: str, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, patch.object(sql, "WHOLE", 0):
        url = f"sqlite:///{folder}/budget.db"
        with BudgetLedger.open(url) as ledger:
            life = Life(ledger.create("tickets", BUDGET, relation=relation, rule=rule))
            for name, scope, what in steps:
                with suppress(BudgetExceeded, LedgerError):
                    if name == "reserve":
                        life.reserve(scope, what)
                    elif name == "change the budget":
                        life.account.change_budget(PrivacyBudget(9.0, 1e-3))
                    elif name == "lose the totals":
                        with closing(sqlite3.connect(f"{folder}/budget.db")) as connection, connection:
                            connection.execute("UPDATE dpfewshot_account SET sums = '[]'")
                    else:
                        life.act(name, what)
            life.reserve(None, PrivacySpend(0.0, 0.0))  # if the totals were lost, this adds them up again
            running, sums = stored(url)
            assert running == sums
            assert life.account.verify().problems == ()


@dataclass
class Life:
    """An account, and what is known of its entries: scope, cost and lease."""

    account: Account
    entries: dict[int, tuple[str | None, Cost, str]] = field(default_factory=dict)

    def reserve(self, scope: str | None, cost: Cost) -> None:
        entry = self.account.reserve(scope, cost, {}, DrawCounts(3, "first")).entry
        self.entries[entry] = scope, cost, "first"

    def act(self, name: str, which: int) -> None:
        """Do something with an entry, if there is one."""
        if not self.entries:
            return
        entry = sorted(self.entries)[which % len(self.entries)]
        scope, cost, lease = self.entries[entry]
        match name:
            case "draw":
                self.account.draw(entry, lease)
            case "progress":
                self.account.record_progress(entry, lease, "")
            case "settle":
                self.account.settle(entry, lease)
            case "cancel":
                self.account.cancel(entry)
            case "resume":
                resume(self.account, entry, scope, cost, {}, lease=f"{lease}+")
                self.entries[entry] = scope, cost, f"{lease}+"
