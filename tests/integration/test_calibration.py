"""A released calibration end to end, with a scripted model that is fond of one label."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot import icl
from tests.support.colours import COLOURS, Colours, shown

TASK = dpf.Task(
    name="colours",
    instruction="Name the colour.",
    label_field="Colour",
    text_field="Thing",
    labels=("red", "blue", "light blue"),
)
ROSE = shown("rose", "red")
BUDGET = dpf.PrivacyBudget(epsilon=1.0, delta=1e-6)
RECORDS = [
    dpf.Record(("sky", "rose", "sea")[i % 3], ("light blue", "red", "blue")[i % 3]) for i in range(600)
]


def named(count: int = 3_000) -> Any:
    records = [dpf.Record(RECORDS[i % 3].text, RECORDS[i % 3].label, f"customer {i}") for i in range(count)]
    return dpf.as_records(records, unit="customer")


def released(records: Any = None, backend: Any = None, demonstrations: Any = (ROSE,), **options: Any) -> Any:
    return dpf.release_calibration(
        TASK,
        named() if records is None else records,
        backend or Colours(),
        demonstrations,
        **({"budget": BUDGET, "prompt_format": COLOURS} | options),
    )


def test_a_classifier_divides_by_the_released_bias() -> None:
    found = released(holdout=None, scored_units=3_000)
    assert (found.private, found.relation, found.parallel) == (True, "zero-out", False)
    assert 0.9 < found.spent.epsilon <= 1.0
    assert found.spent.delta == 1e-6
    plain = icl.Classifier(COLOURS, Colours(), [ROSE], calibrated=False)
    expected = np.log(plain.predict_proba(["sky", "rose", "sea"])).mean(axis=0)
    assert np.abs(np.array(found.bias) - (expected - expected.mean())).max() < 6 * found.noise + 1e-4
    calibrated = icl.Classifier(COLOURS, Colours(), [ROSE], calibration=found)
    ratios = plain.predict_proba("sky")[0] / np.exp(found.bias)
    assert calibrated.predict_proba("sky")[0] == pytest.approx(ratios / ratios.sum(), rel=1e-6)
    assert calibrated.calibrated
    things = ["rose", "sky", "sea"]
    assert plain.predict(things) == ["red", "red", "red"]
    assert calibrated.predict(things) == ["red", "light blue", "blue"]


def test_it_is_of_one_prompt() -> None:
    found = released()
    for demonstrations in ([], [ROSE, ROSE], [shown("tulip", "red")]):
        with pytest.raises(dpf.InvalidPlan, match="released for another prompt"):
            icl.Classifier(COLOURS, Colours(), demonstrations, calibration=found)


def test_it_survives_json_and_refuses_what_is_none() -> None:
    found = released()
    again = icl.Calibration.from_dict(json.loads(json.dumps(found.as_dict())))
    assert again == found
    for change in (
        {"bias": [0.0]},
        {"bias": ["a", "b", "c"]},
        {"bias": [float("nan")] * 3},
        {"labels": None},
        {"prompt": 7},
        {"private": None},
    ):
        with pytest.raises(dpf.InvalidPlan, match="the calibration has"):
            icl.Calibration.from_dict(found.as_dict() | change)


def test_it_is_charged_before_it_is_released_and_adds_without_a_partition() -> None:
    account = dpf.MemoryAccount(dpf.PrivacyBudget(1.5, 1e-5))
    account_of = {"ledger": account, "budget": dpf.PrivacyBudget(1.0, 1e-6)}
    assert account.spent.epsilon == 0.0
    found = released(**account_of)
    assert account.spent == found.spent
    with pytest.raises(dpf.BudgetExceeded):
        released(**account_of)
    assert account.spent == found.spent


def test_a_refused_release_asks_the_model_nothing_about_records() -> None:
    account, asked = dpf.MemoryAccount(dpf.PrivacyBudget(0.5, 1e-5)), []

    class Counting(Colours):
        def next_token_logprobs(self, *arguments: Any, **named: Any) -> Any:
            asked.append(arguments)
            return super().next_token_logprobs(*arguments, **named)

    with pytest.raises(dpf.BudgetExceeded):
        released(backend=Counting(), ledger=account)
    assert not asked


def test_a_model_that_dies_costs_nothing_and_tells_no_text() -> None:
    account = dpf.MemoryAccount(dpf.PrivacyBudget(4.0, 1e-5))

    class Dead(Colours):
        def next_token_logprobs(self, *_: Any, **__: Any) -> Any:
            raise dpf.BackendError("the server is gone")

    with pytest.raises(dpf.BackendError) as caught:
        released(backend=Dead(), ledger=account)
    assert "sky" not in str(caught.value)
    assert account.spent.epsilon == 0.0


def test_a_model_without_an_answer_leaves_noise_alone() -> None:
    account = dpf.MemoryAccount(dpf.PrivacyBudget(4.0, 1e-5))

    class Silent(Colours):
        def next_token_logprobs(self, *arguments: Any, **named: Any) -> Any:
            return np.full_like(super().next_token_logprobs(*arguments, **named), np.nan)

    found = released(backend=Silent(), ledger=account)
    assert np.abs(found.bias).max() < 7 * found.noise
    assert account.spent == found.spent


def test_seeded_releases_have_no_guarantee_and_no_account() -> None:
    one, other = (released(random_source=random.Random(7).randbytes) for _ in range(2))
    assert one == other
    assert (one.private, one.spent) == (False, None)
    with pytest.raises(dpf.InvalidPlan, match="without a guarantee"):
        released(random_source=random.Random(7).randbytes, ledger=dpf.MemoryAccount(BUDGET))


def test_with_a_holdout_it_costs_nothing_beside_generation() -> None:
    account = dpf.MemoryAccount(dpf.PrivacyBudget(1.0, 1e-5))
    synthesizer = dpf.Synthesizer(
        TASK,
        named(),
        Colours(),
        budget=dpf.PrivacyBudget(1.0, 1e-5),
        mechanism=dpf.mechanisms.Gaussian(top_k=4),
        max_tokens=2,
        ledger=account,
        holdout=0.2,
    )
    synthesizer.generate_all()
    spent = account.spent
    found = released(ledger=account, budget=dpf.PrivacyBudget(0.5, 1e-6))
    assert found.parallel
    assert account.spent == spent


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(dpf.InvalidPlan, match="scored_units"):
        released(scored_units=0)
    with pytest.raises(dpf.InvalidPlan, match="epsilon must be at least"):
        released(budget=dpf.PrivacyBudget(1e-4, 1e-6))
    variant = Colours()
    variant.batch_invariant = False
    with pytest.raises(dpf.BackendNotBatchInvariant):
        released(backend=variant)
