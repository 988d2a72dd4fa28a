"""Synthesizers, plans and demonstrations: small defaults, and whatever a test gives in their place."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.backends import LogprobBackend
from dpfewshot.exact import RandomSource
from dpfewshot.icl import Calibration
from dpfewshot.mechanisms import Gaussian, WordHistogram
from dpfewshot.planning.plan import GenerationPlan, Stratum, StratumPlan
from dpfewshot.planning.planner import plan_stratum
from dpfewshot.planning.settings import PlanSettings
from dpfewshot.values import PrivacyBudget, PrivacySpend, unit_of
from tests.support.scripts import TASK, Sentence, tickets

BUDGET = PrivacyBudget(epsilon=4.0, delta=1e-5)
SPENT = PrivacySpend(4.0, 1e-5)
SETTINGS = PlanSettings(
    prompts_per_draw=20,
    records_per_prompt=1,
    max_tokens=8,
    shots_per_label=1,
    tokens_per_draw=1,
    record_token_cap=100,
)

COUNTING: dict[str, Any] = {"mechanism": WordHistogram(), "prompts_per_draw": None, "tokens_per_draw": None}
"""Settings of a synthesizer that counts words."""

planned_once = cache(plan_stratum)
"""In place of `plan_stratum`, a function of frozen values that takes most of a synthesizer's time."""


def synthesizer(
    backend: LogprobBackend | None = None,
    records: Any = None,
    *,
    task: dpf.Task = TASK,
    random_source: RandomSource | None = None,
    unit: str | None = None,
    ledger: str | None = None,
    **settings: Any,
) -> dpf.Synthesizer:
    """A synthesizer of `Sentence` for 400 tickets: Gaussian, M = 20, R = 1 and T = 8, whatever is planned.

    Given a random source, it draws from that: its results say `certified=False`. Given the URL of a ledger,
    it spends from the account "tickets" there, which is created with its budget if there is none.
    """
    defaults: dict[str, Any] = {
        "budget": BUDGET,
        "mechanism": Gaussian(top_k=8),
        "prompts_per_draw": 20,
        "max_tokens": 8,
        "tokens_per_draw": 1,
    }
    kind = dpf.Synthesizer
    if random_source is not None:
        kind = type("SeededSynthesizer", (kind,), {"_random_source": staticmethod(random_source)})
    expert = {field.name for field in dataclasses.fields(dpf.Settings)}
    given = defaults | settings
    chosen = {name: given.pop(name) for name in expert & given.keys()}
    checked = dpf.as_records(tickets() if records is None else records, unit=unit)
    if ledger is not None:
        given["account"] = account(ledger, checked, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpfewshot.planning.planner.plan_stratum", planned_once)
        return kind(
            task,
            checked,
            Sentence() if backend is None else backend,
            **given,
            settings=dpf.Settings(**chosen),
        )


def account(
    ledger: str, records: Any, *, budget: PrivacyBudget = BUDGET, population: Any = None, **_: Any
) -> dpf.Account:
    """The account "tickets" for such a synthesizer."""
    relation = "zero-out" if population is None else "add-remove"
    return dpf.open_account(ledger, "tickets", create=budget, relation=relation, unit=unit_of(records))


def stratum_plan(
    label: str = "refund", population: int = 400, *, budget: PrivacyBudget = BUDGET
) -> StratumPlan:
    return plan_stratum(Gaussian(), SETTINGS, budget, Stratum(label, (label,), population))


def plan(*strata: StratumPlan, relation: str = "zero-out") -> GenerationPlan:
    return GenerationPlan("gaussian", relation, SETTINGS, strata, prompt_tokens=10)


def calibration(**changes: Any) -> Calibration:
    """A released calibration of two labels."""
    usual = Calibration(
        *(("a", "b"), (0.5, -0.5), 0.1, "0" * 64, PrivacySpend(0.5, 1e-6), "zero-out", None),
        parallel=False,
        certified=True,
    )
    return dataclasses.replace(usual, **changes)


def demonstration(
    text: str = "my parcel is late",
    label: str = "refund",
    *,
    spent: PrivacySpend | None = SPENT,
    **changes: Any,
) -> dpf.Demonstration:
    """A demonstration of the Gaussian mechanism; private unless `spent` is None."""
    return dpf.Demonstration(
        **{
            "text": text,
            "label": label,
            "token_count": len(text.split()),
            "certified": spent is not None,
            "spent": spent,
            "relation": "zero-out",
            "mechanism": "gaussian",
        }
        | changes
    )
