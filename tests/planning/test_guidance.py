"""A plan with more noise than its text bears says so, and what would help."""

from __future__ import annotations

import dataclasses
import math
import re
from decimal import Decimal, localcontext

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import dpfewshot as dpf
from dpfewshot.mechanisms import PublicCentred, WordHistogram
from dpfewshot.planning.plan import GenerationPlan, reading
from dpfewshot.planning.planner import enough
from dpfewshot.values import epsilon_text
from tests.support.factory import synthesizer
from tests.support.scripts import TASK

NOISES = {"a": 0.01, "b": 0.1, "c": 0.5, "d": 0.3}
"""The noise of labels of a word histogram."""


def planned(tokens: int, prompts: int, *, every: int | None = None) -> GenerationPlan:
    """The plan of texts of so many tokens at ε = 4, for 200 units a label."""
    return synthesizer(
        mechanism=PublicCentred(8),
        prompts_per_draw=prompts,
        max_tokens=tokens,
        tokens_per_draw=every or tokens,
    ).plan


@pytest.mark.parametrize("prompts", [20, 40])
def test_fewer_tokens_on_a_draw_have_less_noise_with_as_many_prompts(prompts: int) -> None:
    noises = [planned(60, prompts, every=every).noise_on_mean or 0.0 for every in (60, 15, 1)]
    assert noises == sorted(noises, reverse=True)


def test_a_long_text_is_planned_with_a_warning_and_a_short_one_without() -> None:
    assert planned(20, 40).warnings == ()
    (warning,) = planned(400, 40).warnings
    assert "make little sense, and about 1 word in 10, or more, will be out of place" in warning
    (warning,) = planned(20, 19).warnings
    assert "read badly: about 1 word in 25, or more, will be out of place; what helps: " in warning
    assert planned(20, 19).as_dict()["warnings"] == [warning]


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0, 9.1, 9.25, 12.0, 1000.0])
def test_a_plan_says_how_sure_its_epsilon_lets_a_reader_become(epsilon: float) -> None:
    """The percentage bounds the posterior of the exact odds, and is no further above than it is printed.

    It warns where one per cent sure may become ninety-nine.
    """
    made = synthesizer(budget=dpf.PrivacyBudget(epsilon, 1e-5)).plan
    (sentence,) = (one for one in made.notes if one.startswith(f"epsilon {epsilon_text(made.epsilon or 0)}"))
    found = re.search(r"at most ([\d.]+) % sure, apart from delta 1e-05", sentence)
    assert found is not None
    with localcontext(prec=900):
        odds = Decimal(made.epsilon or 0).exp()
        reached = 100 * odds / (1 + odds)
        assert reached <= Decimal(found[1]) <= min(reached + Decimal("0.1"), Decimal(100))
    warned = [one for one in made.warnings if "protects hardly at all" in one]
    odds /= 99
    assert len(warned) == (odds / (1 + odds) > Decimal("0.99"))


def test_a_plan_without_a_guarantee_says_nothing_of_odds() -> None:
    made = synthesizer(budget=dpf.NO_PRIVACY).plan
    assert made.warnings == ()
    assert not [one for one in made.notes if "epsilon" in one]


@pytest.mark.parametrize("cap", [3, 100, 400])
def test_a_plan_says_how_much_of_a_record_is_read_whatever_the_records_hold(cap: int) -> None:
    long = [dpf.Record("a word " * 500, TASK.labels[i % 2]) for i in range(400)]  # type: ignore[index]
    told = [synthesizer(records=each, record_token_cap=cap).plan.notes for each in (None, long)]
    assert told[0] == told[1]
    (sentence,) = (one for one in told[0] if "record_token_cap" in one)
    assert f"at most {cap} tokens of a record" in sentence


@pytest.mark.parametrize(
    ("noise", "says"),
    [
        (0.15 * (1 + 1e-9), "read badly: about 1 word in 25, or more"),
        (0.2, "read badly: about 1 word in 25, or more"),
        (0.2 * (1 + 1e-9), "read badly: they will make little sense"),
        (1.0, "read badly: they will make little sense"),
        (1 + 1e-9, "read badly: most words will be random"),
        (5559.64, "read badly: most words will be random"),
        (1e308, "read badly: most words will be random"),
    ],
)
def test_a_warning_says_how_badly_in_words_that_a_newcomer_knows(noise: float, says: str) -> None:
    made = planned(20, 19)
    strata = tuple(dataclasses.replace(one, noise_on_mean=noise) for one in made.strata)
    made = dataclasses.replace(made, strata=strata)
    (warning,) = made.warnings
    assert f"the texts will {says}" in warning
    assert not re.search(r"noise|mean|mechanism|stratum|unit|token\b|sigma|centred", warning)
    assert ("out of place" in warning) == (noise <= 1)  # nothing was measured above
    assert says.removeprefix("read badly: ") in reading(made)


def test_a_gaussian_release_exceeds_its_epsilon_more_often_than_delta() -> None:
    """What docs/privacy-officer.md says of "apart from delta" (Balle and Wang 2018, Theorem 8)."""

    def exceeds(noise: float) -> float:
        return float(norm.cdf(1 / (2 * noise) - 2 * noise))

    noise = brentq(lambda s: exceeds(s) - math.exp(2) * norm.cdf(-1 / (2 * s) - 2 * s) - 1e-5, 1, 3)
    assert exceeds(noise) == pytest.approx(9.3e-5, abs=0.05e-5)


def test_a_warning_is_right_for_each_label() -> None:
    made = synthesizer(mechanism=WordHistogram(), tokens_per_draw=None, prompts_per_draw=None).plan
    one = made.strata[0]
    strata = [dataclasses.replace(one, scope=name, noise_on_mean=noise) for name, noise in NOISES.items()]
    (warning,) = dataclasses.replace(made, strata=tuple(strata)).warnings
    said = (
        "the texts of c, d will say hardly anything of the records; those of b will say little of the records"
    )
    assert warning.startswith(f"{said}; what helps: docs")
    told = reading(dataclasses.replace(made, strata=tuple(strata)))
    assert told == f"whole sentences, as close to the records as this model gets; but {said}"
    assert reading(dataclasses.replace(made, strata=tuple(strata[1:]))) == f"whole sentences, but {said}"


def test_how_many_units_suffice_does_not_depend_on_other_labels() -> None:
    """Every unit takes part in the one draw of a histogram, however many there are."""
    model = dpf.backends.Scripted([" a", "\n"], lambda _: [0.5, 0.5])
    task = dpf.Task(name="t", instruction="Write.", label_field="A", text_field="B", labels=("few", "many"))
    records = [dpf.Record("a", label) for label, n in (("few", 43), ("many", 83)) for _ in range(n)]
    needed = []
    for labels in (["few"], ["few", "many"]):
        run = dpf.Synthesizer(
            task,
            records,
            model,
            labels=labels,
            budget=dpf.PrivacyBudget(2, 1e-5),
            mechanism=WordHistogram(),
        )
        found = enough(run.set_up.mechanism, run.plan)
        assert found is not None
        needed.append(found.population)
    assert needed[0] == needed[1]
