"""The ledger on real SQLite files: accounts, processes and plans."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.amounts import NOTHING, Amount
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.scopes import partition_of
from dpfewshot.account.verification import check
from dpfewshot.errors import BudgetExceeded, InvalidPlan, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support import factory
from tests.support.accounts import DRAWS, charged, scope_name
from tests.support.commands import Run
from tests.support.ledgers import BUDGET, COST, rows, run
from tests.support.scripts import TASK, tickets

DIES = """
import os, signal, sys
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.values import PrivacySpend
from tests.support.accounts import DRAWS, LEASE

account = BudgetLedger.open(sys.argv[1]).account("tickets")
entry = account.reserve(None, PrivacySpend(0.75, 1e-6), {}, DRAWS).entry
if sys.argv[2] == "charged":
    account.draw(entry, LEASE)
os.kill(os.getpid(), signal.SIGKILL)
"""


FORKS = """
import os, sys, threading, time
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS, charged, scope_name

account = BudgetLedger.open(sys.argv[1]).account("tickets")
forked = threading.Event()

def keep_reserving():
    while not forked.is_set():
        account.cancel(account.reserve(None, PrivacySpend(0.001, 0.0), {}, DRAWS).entry)

threads = [threading.Thread(target=keep_reserving) for _ in range(2)]
for thread in threads:
    thread.start()
children = []
for _ in range(10):
    time.sleep(0.02)  # the threads are in the middle of something
    child = os.fork()
    if not child:
        charged(account, None, PrivacySpend(0.05, 0.0))
        os._exit(0)
    children.append(child)
statuses = [os.waitpid(child, 0)[1] for child in children]
forked.set()
for thread in threads:
    thread.join()
assert statuses == [0] * 10, statuses
"""


# accounts
@pytest.mark.parametrize("other", [{"relation": "add-remove"}, {"unit": "customer"}])
@pytest.mark.parametrize("method", ["create", "account_or_create"])
def test_a_second_relation_or_unit_is_refused(
    ledger: BudgetLedger, account: Account, method: str, other: dict[str, str]
) -> None:
    with pytest.raises(LedgerError, match=r"zero-out.*None") as caught:
        getattr(ledger, method)(account.dataset, BUDGET, **other)
    assert repr(next(iter(other.values()))) in str(caught.value)


def test_creating_with_another_budget_or_rule_of_adding_is_refused(
    ledger: BudgetLedger, account: Account
) -> None:
    with pytest.raises(LedgerError, match=r"epsilon=1\.0.*not .*epsilon=2\.0"):
        ledger.create(account.dataset, PrivacyBudget(2.0, 1e-5))
    with pytest.raises(LedgerError, match="parallel=True"):
        ledger.create(account.dataset, BUDGET, parallel=False)


def test_a_changed_budget_counts_at_once_for_everybody(account: Account, url: str) -> None:
    with BudgetLedger.open(url) as elsewhere:
        same = elsewhere.account("tickets")
        same.reserve(None, COST, {}, DRAWS)
        account.change_budget(PrivacyBudget(1.5, 1e-5))
        same.reserve(None, COST, {}, DRAWS)
        assert same.budget == PrivacyBudget(1.5, 1e-5)
        account.change_budget(PrivacyBudget(0.5, 1e-5))  # below what is spent: nothing more fits
        assert same.remaining == PrivacySpend(0.0, 8e-6)
        with pytest.raises(BudgetExceeded):
            same.reserve(None, PrivacySpend(0.01, 0.0), {}, DRAWS)
    assert account.verify().ok


def test_an_existing_account_keeps_its_own_budget(ledger: BudgetLedger, account: Account) -> None:
    assert ledger.account_or_create(account.dataset, PrivacyBudget(0.1, 1e-9)).budget == BUDGET
    assert ledger.account_or_create("other", PrivacyBudget(0.1, 1e-9)).budget == PrivacyBudget(0.1, 1e-9)


def test_a_missing_account_says_to_look_again_before_making_it(ledger: BudgetLedger, url: str) -> None:
    says = r"'tickets': compare the .* path .*: dpfewshot ledger create --ledger"
    with pytest.raises(LedgerError, match=says):
        ledger.account("tickets")
    with pytest.raises(LedgerError, match=rf"{says} .*--relation add-remove --unit customer$"):
        dpf.open_account(url, "tickets", relation="add-remove", unit="customer")


def test_an_overdrawn_account_and_a_changed_entry(
    ledger: BudgetLedger, account: Account, url: str, command: Run
) -> None:
    charged(account, None, COST)
    snapshot = account.snapshot()
    snapshot.entries[0]["epsilon"] = 10**12
    [problem] = check(snapshot).problems
    assert "is charged with epsilon=1.0, delta=1e-06 for the whole data set, its history" in problem
    with pytest.raises(LedgerError, match="change-budget"):
        ledger.create("tickets", PrivacyBudget(0.5, 1e-5))
    change = ["ledger", "change-budget", "--ledger", url, "--dataset", "tickets", "--delta", "1e-5"]
    status, _, told = command(*change, "--epsilon", "0.5")
    assert (status, "overdrawn" in told) == (0, True)
    status, out, told = command(*change, "--epsilon", "1")
    weaker = "warning: the promise is weaker than at epsilon 0.5: 50 % sure becomes at most 73.2 % sure"
    assert (status, told) == (0, f"{weaker}, by all texts of the account together\n")
    assert "1 entry, relation zero-out, each record is one unit" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"relation": "zero_out"}, "relation"),
        ({"budget": PrivacyBudget(1e7, 1e-5)}, None),
        ({"budget": PrivacyBudget(1.0, 1e-19)}, None),
        ({"unit": ""}, "name of a column"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    ledger: BudgetLedger, words: dict[str, Any], says: str | None
) -> None:
    for method in (ledger.create, ledger.account_or_create):
        with pytest.raises(LedgerError, match=says):
            method("tickets", **({"budget": BUDGET} | words))
    assert ledger.datasets() == []


@pytest.mark.parametrize("cost", [(-0.5, 0.0), (0.0, -1e-9), (float("nan"), 0.0), (float("inf"), 0.0)])
def test_an_impossible_cost_is_refused(account: Account, cost: tuple[float, float]) -> None:
    with pytest.raises(InvalidPlan):
        account.reserve(None, PrivacySpend(*cost), {}, DRAWS)
    assert account.entries == 0


@pytest.mark.parametrize("details", [{"sigma": float("nan")}, {"sigma": object()}])
def test_details_that_are_no_facts_are_refused(account: Account, details: dict[str, float]) -> None:
    with pytest.raises(LedgerError, match="details"):
        account.reserve(None, COST, details, DRAWS)
    assert account.entries == 0


# processes
@pytest.mark.slow
@pytest.mark.parametrize("when", ["reserved", "charged"])
def test_what_a_killed_process_had_reserved_stays_spent(account: Account, url: str, when: str) -> None:
    assert run(DIES, url, when).returncode == -signal.SIGKILL
    assert account.spent == COST
    assert account.entries == 1
    with pytest.raises(BudgetExceeded):
        account.reserve(None, COST, {}, DRAWS)


@pytest.mark.slow
def test_children_forked_between_threads_use_the_same_ledger(ledger_url: str) -> None:
    account = BudgetLedger.open(ledger_url).create("tickets", BUDGET)
    finished = run(FORKS, ledger_url)
    assert finished.returncode == 0, finished.stderr
    assert account.spent == PrivacySpend(0.5, 0.0)
    assert account.entries == 10


def test_no_connection_stays_open_between_calls(account: Account, path: Path) -> None:
    account.reserve(None, COST, {}, DRAWS)
    opened = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    assert [name for name in opened if name.startswith(str(path))] == [str(path)]  # what the lock is on
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_relative_name_means_the_directory_of_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with BudgetLedger.open("sqlite:///budget.db") as ledger:
        account = ledger.create("tickets", BUDGET)
        monkeypatch.chdir("/")
        account.reserve(None, COST, {}, DRAWS)
    assert rows(tmp_path / "budget.db", "SELECT count(*) FROM dpfewshot_entry") == [(1,)]


def test_a_closed_ledger_refuses_its_accounts_too(url: str) -> None:
    with BudgetLedger.open(url) as ledger:
        account = ledger.create("tickets", BUDGET)
    for call in (
        lambda: account.spent,
        lambda: account.reserve(None, COST, {}, DRAWS).entry,
        ledger.datasets,
    ):
        with pytest.raises(LedgerError, match="closed"):
            call()


# plans
def synthesizer(account: Account, **settings: object) -> dpf.Synthesizer:
    defaults = {"budget": dpf.PrivacyBudget(0.5, 1e-6), "max_tokens": 40}
    return factory.synthesizer(account=account, **(defaults | settings))


def acts(account: Account) -> list[tuple[object, object]]:
    return [(row["act"], row["scope"]) for row in account.history()][1:]


def test_a_plan_is_reserved_charged_and_settled(account: Account) -> None:
    with closing(synthesizer(account)) as made:
        made.generate("refund")
        scope = scope_name("tickets", TASK.labels, "refund")
        assert acts(account) == [("reserve", scope), ("charge", scope), ("release", scope)]
    assert acts(account)[3:] == [("settle", scope)]
    with pytest.raises(BudgetExceeded):
        made.generate("refund")
    [_, reserved, *_] = account.history()
    assert reserved["details"]["mechanism"] == "gaussian"
    assert set(reserved["details"]) >= {"noise_multiplier", "sampling_rate", "steps"}
    assert json.loads(reserved["details"]["task_labels"]) == list(TASK.labels)
    assert account.partition == partition_of(scope)


def test_a_plan_that_used_all_its_draws_settles_itself(account: Account) -> None:
    synthesizer(account, max_tokens=3).generate("refund")
    assert [act for act, _ in acts(account)] == ["reserve", "charge", "release", "settle"]


def test_an_amount_is_the_same_integers_in_the_row_the_history_and_every_sum(ledger: BudgetLedger) -> None:
    """Also amounts of more digits than a float has."""
    account = ledger.create("tickets", PrivacyBudget(9e6, 0.9))
    generator, total = random.Random(3), NOTHING
    for _ in range(20):
        amount = Amount(generator.randrange(10**17), generator.randrange(4 * 10**16))
        charged(account, None, amount)
        total = total.plus(amount)
        exported = account.export()
        for row in (exported["entries"][-1], exported["history"][-2]):
            assert (row["epsilon_in_1e-12"], row["delta_in_1e-18"]) == amount
        assert sum(row["epsilon_in_1e-12"] for row in exported["entries"]) == total.epsilon
        assert sum(row["delta_in_1e-18"] for row in exported["entries"]) == total.delta
        assert account.spent == total.as_spend()
    assert account.verify().ok
    reserved = [row for row in account.export()["history"] if row["act"] == "reserve"]
    assert sum(row["epsilon_in_1e-12"] for row in reserved) == total.epsilon


def test_a_plan_reserves_exactly_its_cost(tmp_path: Path) -> None:
    """Delta has more digits than an amount, and epsilon is no binary fraction."""
    made = factory.synthesizer(budget=PrivacyBudget(0.7, 1 / 896), ledger=f"sqlite:///{tmp_path}/exact.db")
    made.generate("refund")
    account = dpf.open_account(f"sqlite:///{tmp_path}/exact.db", "tickets")
    [entry] = account.export()["entries"]
    plan = made.plan.stratum_of("refund")
    assert (entry["epsilon_in_1e-12"], entry["delta_in_1e-18"]) == plan.cost
    assert plan.cost.fits(Amount.of_budget(PrivacyBudget(0.7, 1 / 896)))
    assert account.spent == plan.spend == made.spent


def test_an_account_is_opened_in_one_call_and_created_on_purpose(ledger_url: str) -> None:
    budget = PrivacyBudget(2.0, 1e-6)
    with pytest.raises(LedgerError, match="no account"):
        dpf.open_account(ledger_url, "tickets")
    made = dpf.open_account(ledger_url, "tickets", create=budget, unit="customer")
    made.reserve(None, PrivacySpend(0.5, 0.0), {}, DRAWS)
    again = dpf.open_account(ledger_url, "tickets", create=PrivacyBudget(9.0, 1e-6), unit="customer")
    assert (again.budget, again.spent) == (budget, PrivacySpend(0.5, 0.0))
    assert dpf.open_account(ledger_url, "tickets").unit == "customer"
    with pytest.raises(LedgerError, match="cannot be used"):
        dpf.open_account(ledger_url, "tickets", create=budget)


@pytest.mark.parametrize("parallel", [True, False])
def test_a_plan_of_changed_records_warns_before_it_is_paid_for(url: str, parallel: bool) -> None:
    account = dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(17.0, 1e-3), parallel=parallel)
    factory.synthesizer(account=account).generate_all()
    factory.synthesizer(account=account, max_tokens=7)  # another plan of the same records
    warns = pytest.warns(UserWarning, match="of 200 units of 'delivery', and now there are 199")
    with warns if parallel else nullcontext():
        made = factory.synthesizer(records=tickets()[:-1], account=account)
    assert (account.spent.epsilon < 5) is parallel
    made.generate_all()
    factory.synthesizer(records=tickets()[:-1], account=account)  # which is paid for
