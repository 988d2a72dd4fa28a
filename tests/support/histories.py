"""Accounts with a history."""

from __future__ import annotations

from dpfewshot.account.account import Account, Claim
from dpfewshot.account.amounts import Amount, EventCost
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.accounting import PoissonGaussian
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS, LEASE, charged
from tests.support.ledgers import BUDGET


def lived(url: str) -> Account:
    """An account that has seen every act."""
    account = BudgetLedger.open(url).create("tickets", BUDGET, unit="customer")
    drew = account.reserve(
        "trec: Location", PrivacySpend(0.25, 1e-6), {"mechanism": "gaussian", "steps": 15}, DRAWS
    ).entry
    account.draw(drew, LEASE)
    account.settle(drew, LEASE)
    account.cancel(account.reserve(None, PrivacySpend(0.1, 0.0), {}, DRAWS).entry)
    account.change_budget(PrivacyBudget(2.0, 1e-5))
    charged(account, "trec: Number", PrivacySpend(0.5, 0.0))
    account.reserve(None, PrivacySpend(0.5, 0.0), {}, DRAWS)
    return account


def drew(url: str) -> Account:
    """An account with an entry that drew, was resumed, and has two draws left of four."""
    account = BudgetLedger.open(url).create("tickets", BUDGET)
    entry = account.reserve(
        "trec: Location", PrivacySpend(0.25, 1e-6), {"steps": 4}, DrawCounts(4, "first")
    ).entry
    account.draw(entry, "first")
    words = entry, "trec: Location", PrivacySpend(0.25, 1e-6), {"steps": 4}
    account.resume([Claim(*words, "second")])
    account.draw(entry, "second")
    return account


def three_plans(url: str) -> Account:
    """An account with a Rényi rule, with two plans of an event and one without."""
    weekly = EventCost(Amount(10**11, 10**12), PoissonGaussian(0.1, 3.2, 15))
    account = BudgetLedger.open(url).create("tickets", PrivacyBudget(4.0, 1e-5), rule="renyi")
    for cost in (weekly, weekly, PrivacySpend(0.1, 0.0)):
        account.reserve(None, cost, {}, DRAWS)
    return account
