"""Accounts with a Rényi rule, on disk: processes, plans and the command line."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.amounts import Amount, EventCost, pure_cost
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.accounting import PoissonRandomizedResponse, epsilon
from dpfewshot.accounting.renyi import renyi_divergence
from dpfewshot.errors import BudgetExceeded
from dpfewshot.releases.calibration import NoisyMean
from dpfewshot.report.spending import spending_of
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.account.test_account_rules import BUDGET, WEEKLY
from tests.integration.test_wiring import SpyingAccount
from tests.releases.test_choosing import HELPFUL, choose
from tests.support import factory
from tests.support.accounts import DRAWS
from tests.support.commands import Run
from tests.support.ledgers import three_plans
from tests.support.processes import environment

RACE = """
import sys
import dpfewshot as dpf
from dpfewshot.errors import BudgetExceeded
from tests.account.test_account_rules import WEEKLY
from tests.support.accounts import charged
account = dpf.BudgetLedger.open(sys.argv[1]).account("tickets")
admitted = 0
try:
    while True:
        charged(account, None, WEEKLY)
        admitted += 1
except BudgetExceeded:
    print(admitted)
"""


def test_two_processes_share_what_one_may_spend(url: str) -> None:
    account = BudgetLedger.open(url).create("tickets", BUDGET, rule="renyi")
    command = [sys.executable, "-c", RACE, url]
    running = [
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    admitted = [int(each.communicate(timeout=120)[0]) for each in running]
    assert sum(admitted) == account.entries == 43
    assert account.verify().ok


def test_a_plan_states_the_divergence_of_its_event(url: str) -> None:
    BudgetLedger.open(url).create("tickets", PrivacyBudget(4.0, 1e-5), rule="renyi")
    made = factory.synthesizer(budget=PrivacyBudget(0.5, 1e-6), ledger=url)
    made.generate("refund")
    account = BudgetLedger.open(url).account("tickets")
    [entry] = account.export()["entries"]  # type: ignore[misc]
    event = made.plan.stratum_of("refund").event
    assert event is not None
    assert 0 <= entry["renyi_in_1e-12"] - renyi_divergence(event, 6) * 1e12 < 1  # type: ignore[index]
    assert account.plans_left is not None
    assert account.plans_left > 20


def test_a_release_of_labels_states_its_divergence() -> None:
    account = dpf.Account.in_memory(PrivacyBudget(1.0, 1e-5), rule="renyi")
    records = [dpf.Record(text=str(number), label="a") for number in range(20)]
    release = functools.partial(
        dpf.release_labels, records, count=1, epsilon=0.02, candidates=["a", "b"], account=account
    )
    for _ in range(100):  # by sums alone, 50
        release()
    assert account.spent.epsilon <= 1.0
    while account.remaining.epsilon > 0.02:
        release()
    with pytest.raises(BudgetExceeded, match="Rényi divergence of order"):
        all(release() for _ in range(100))


def test_a_choice_and_a_calibration_state_their_divergences() -> None:
    journal: list[Any] = []
    account = SpyingAccount(PrivacyBudget(4.0, 1e-5), journal)
    choose([HELPFUL], account=account)
    choose([HELPFUL], account=account, scored_units=100)
    choice, sampled = (told.arguments[1].event for told in journal if told.act == "reserve")
    assert choice == PoissonRandomizedResponse(1.0, 2.0, 1)
    assert (sampled.sampling_rate, sampled.steps) == (0.1, 1)
    assert math.log1p(0.1 * math.expm1(sampled.epsilon)) == pytest.approx(2.0)
    assert renyi_divergence(sampled, 4) < 0.9 * renyi_divergence(choice, 4)
    mean = NoisyMean.of_budget(PrivacyBudget(0.5, 1e-6), Fraction(1, 10), 3)
    assert epsilon(mean.cost.event, 1e-6).upper * 1e12 <= mean.cost.amount.epsilon < 0.5 * 1e12


@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_rounds_of_a_pure_cost_hold_all_of_it(rounds: int) -> None:
    cost = pure_cost(Amount.of_cost(PrivacySpend(0.1, 0.0)), rounds)
    assert isinstance(cost, EventCost)
    assert cost.amount == Amount(10**11, 0)
    event = cost.event
    assert isinstance(event, PoissonRandomizedResponse)
    assert Fraction(event.epsilon) * event.steps >= Fraction(1, 10)
    assert not isinstance(pure_cost(Amount.of_cost(PrivacySpend(1e7, 0.0))), EventCost)


def test_a_report_shows_what_the_rule_certifies(url: str) -> None:
    account = three_plans(url)
    for _ in range(20):
        account.reserve(None, WEEKLY, {}, DRAWS)
    spending = spending_of(account.snapshot(), confidential=False)
    assert spending.spent == account.spent
    assert spending.spent.epsilon < sum(plan.spend.epsilon for plan in spending.plans) / 2


def test_the_command_line_creates_and_shows_it(url: str, command: Run) -> None:
    common = ["--ledger", url, "--dataset", "tickets"]
    create = ("ledger", "create", *common, "--epsilon", "4", "--delta", "1e-5")
    assert "rule renyi, chain tip" in command(*create, "--rule", "renyi")[1]
    BudgetLedger.open(url).account("tickets").reserve(None, WEEKLY, {}, DRAWS)
    shown = json.loads(command("ledger", "show", *common, "--json")[1])
    assert (shown["rule"], shown["plans_left"]) == ("renyi", 42)
    *_, heading, row = command("ledger", "show", *common)[1].splitlines()
    assert heading.endswith("more plans like the last one")
    assert row.split()[-1] == "42"
    assert "renyi=0.04" in command("ledger", "history", *common)[1]
    status, _, told = command(*create)
    assert (status, "--rule renyi" in told) == (2, True)
