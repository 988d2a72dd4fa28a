"""Inputs of reports: every section is filled, and a part of each is confidential."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from unittest.mock import patch

from dpfewshot.account.account import Account
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.certificates import line_hash
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.releases.candidates import Candidate, Choice
from dpfewshot.releases.selection import Estimate
from dpfewshot.report import Sources, page, read_choice, read_findings, select
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS
from tests.support.factory import demonstration

SECRET = "my order 4711 never came"
"""The text of a record, which no report holds unless it is asked to."""
LABELS = ("Refund", "Delivery", "Account")


def demonstrations() -> Demonstrations:
    """Two of each label, and one without a guarantee."""
    spend = PrivacySpend(1.0, 1e-6 / 6)  # as each plan of the account
    made = [
        demonstration(f"I ordered {what} and would like help.", label, spent=spend)
        for label in LABELS
        for what in ("a kettle last week", "two chairs; one of them is broken")
    ]
    return Demonstrations([*made, demonstration(SECRET, "Refund", spent=None)])


def account(folder: Path, plans: int = 6, suffix: str = "") -> Account:
    """An account that released `demonstrations`. A plan was given back, and the budget was changed."""
    ledger = BudgetLedger.open(f"sqlite:///{folder}/budget.db")
    with patch("dpfewshot.account.ledger.dataset_name", str):  # whoever tampers may store any name
        account = ledger.create(f"tickets{suffix}", PrivacyBudget(6.0, 1e-5))
    for number in range(plans):
        scope = f"support: {LABELS[number % len(LABELS)]}{suffix}"
        details = {"mechanism": "gaussian", "noise_multiplier": 1.5, "sampling_rate": "2/15", "steps": 4}
        cost, lease = PrivacySpend(6.0 / plans, 1e-6 / plans), f"lease {number}"
        entry = account.reserve(scope, cost, details, DrawCounts(4, lease)).entry
        account.draw(entry, lease)
        lines = [one.as_line() for one in demonstrations()[2 * number : 2 * number + 2]]
        for count, line in enumerate(lines, start=1):
            account.record_release(entry, lease, line_hash(line), json.dumps({"released": lines[:count]}))
    account.cancel(
        account.reserve("support: Refund", PrivacySpend(0.5, 0.0), {"mechanism": "gaussian"}, DRAWS).entry
    )
    account.change_budget(PrivacyBudget(8.0, 1e-5))
    return account


def choice() -> dict[str, object]:
    """As `dpfewshot choose --json` prints it, without an account."""
    chosen = Candidate(demonstrations()[:3], name="demos.jsonl")
    return Choice(
        index=1,
        candidate=chosen,
        accuracy=Estimate(0.842, 0.825, 0.859),
        baseline=Estimate(0.71, 0.692, 0.728),
        spent=PrivacySpend(0.2, 0.0),
        relation="zero-out",
        unit=None,
        certified=True,
    ).as_dict()


def findings() -> dict[str, object]:
    """One of each verdict; the failed one is private."""
    membership = {
        "kind": "membership",
        "title": "Membership inference on TREC",
        "statement": "The attack does no better than guessing.",
        "verdict": "passed",
        "confidential": False,
        "figures": [
            {"name": "AUC, synthetic", "value": 0.503, "low": 0.47, "high": 0.54, "reference": 0.5},
            {"name": "AUC, private", "value": 0.81, "low": 0.77, "high": 0.85, "reference": 0.818},
        ],
        "details": {"members": 500, "non-members": 500},
    }
    canary = {
        "kind": "canary",
        "title": "Canary game",
        "statement": "The lower bound stays below what the plan promises.",
        "verdict": "informative",
        "confidential": False,
        "figures": [{"name": "epsilon, lower bound", "value": 0.4, "low": 0.1, "reference": 1.25}],
        "details": {},
    }
    leak = {
        "kind": "leak",
        "title": "Verbatim overlap",
        "statement": f"A demonstration repeats: {SECRET}",
        "verdict": "failed",
        "confidential": True,
        "figures": [{"name": "longest common run, tokens", "value": 6, "reference": 3}],
        "details": {},
    }
    return {"findings": [membership, canary, leak], "confidential": True}


def files(folder: Path) -> dict[str, Path]:
    """All of it as files, by the option that takes each."""
    names = ("demonstrations", "choice", "audit")
    paths = {name: folder / f"{name}.json" for name in names}
    demonstrations().to_jsonl(paths["demonstrations"])
    paths["choice"].write_text(json.dumps(choice()), encoding="utf-8")
    paths["audit"].write_text(json.dumps(findings()), encoding="utf-8")
    return paths


def rendered(given: Sources, *, confidential: bool = False, title: str = "Tickets") -> str:
    """The page of a report."""
    return page(select(given, confidential=confidential), title=title, made=date(2026, 1, 31))


def sources(folder: Path, *, plans: int = 6) -> Sources:
    """All of it, read."""
    paths = files(folder)
    return Sources(
        demonstrations=Demonstrations.from_jsonl(paths["demonstrations"]),
        snapshot=account(folder, plans).snapshot(),
        choice=read_choice(paths["choice"]),
        findings=read_findings(paths["audit"]),
    )
