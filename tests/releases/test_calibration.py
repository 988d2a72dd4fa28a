"""A released calibration end to end, with a scripted model that is fond of one label."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from scipy import stats

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.releases.calibration import (
    GRID,
    NoisyMean,
    integers_of,
    weights_of_labels,
    weights_of_records,
)
from dpfewshot.values import Record
from tests.support.colours import COLOURS, Colours, shown

TASK = dpf.Task("colours", "Name the colour.", "Colour", "Thing", ("red", "blue", "light blue"))
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
    found = released(holdout=0.0, scored_units=3_000)
    assert (found.certified, found.relation, found.parallel) == (True, "zero-out", False)
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


def test_it_is_charged_before_it_is_released_and_adds_without_a_partition() -> None:
    account = dpf.Account.in_memory(dpf.PrivacyBudget(1.5, 1e-5))
    account_of = {"account": account, "budget": dpf.PrivacyBudget(1.0, 1e-6)}
    assert account.spent.epsilon == 0.0
    found = released(**account_of)
    assert account.spent == found.spent
    with pytest.raises(dpf.BudgetExceeded):
        released(**account_of)
    assert account.spent == found.spent


def test_a_refused_release_asks_the_model_nothing_about_records() -> None:
    account, backend = dpf.Account.in_memory(dpf.PrivacyBudget(0.5, 1e-5)), Colours()
    with pytest.raises(dpf.BudgetExceeded):
        released(backend=backend, account=account)
    assert not backend.calls


@pytest.mark.parametrize("error", [dpf.BackendError("the server is gone"), ConnectionResetError("sky")])
def test_a_model_that_dies_costs_nothing_and_tells_no_text(error: Exception) -> None:
    account = dpf.Account.in_memory(dpf.PrivacyBudget(4.0, 1e-5))

    class Dead(Colours):
        def next_token_logprobs(self, *_: Any, **__: Any) -> Any:
            raise error

    with pytest.raises(dpf.BackendError) as caught:
        released(backend=Dead(), account=account)
    assert "sky" not in str(caught.value)
    assert account.spent.epsilon == 0.0


def test_a_model_that_turns_out_batch_variant_releases_nothing() -> None:
    class Turning(Colours):
        def answer(self, prompt: list[int]) -> list[float]:
            self.batch_invariant = False
            return super().answer(prompt)

    with pytest.raises(dpf.BackendNotBatchInvariant):
        released(backend=Turning(), account=(account := dpf.Account.in_memory(BUDGET)))
    assert account.spent.epsilon == 0.0


def test_a_model_without_an_answer_leaves_noise_alone() -> None:
    account = dpf.Account.in_memory(dpf.PrivacyBudget(4.0, 1e-5))

    class Silent(Colours):
        def next_token_logprobs(self, *arguments: Any, **named: Any) -> Any:
            return np.full_like(super().next_token_logprobs(*arguments, **named), np.nan)

    found = released(backend=Silent(), account=account)
    assert np.abs(found.bias).max() < 7 * found.noise
    assert account.spent == found.spent


def test_seeded_releases_have_no_guarantee_and_no_account() -> None:
    one, other = (released(random_source=random.Random(7).randbytes) for _ in range(2))
    assert one == other
    assert (one.certified, one.spent) == (False, None)
    with pytest.raises(dpf.InvalidPlan, match="without a guarantee"):
        released(random_source=random.Random(7).randbytes, account=dpf.Account.in_memory(BUDGET))


def test_with_a_holdout_it_costs_nothing_beside_generation() -> None:
    budget, mechanism = dpf.PrivacyBudget(1.0, 1e-5), dpf.mechanisms.Gaussian(top_k=4)
    account = dpf.Account.in_memory(budget)
    given = {"budget": budget, "mechanism": mechanism, "account": account, "max_tokens": 2}
    settings = dpf.Settings(holdout=0.2)
    dpf.Synthesizer(TASK, named(), Colours(), **given, settings=settings).generate_all()
    spent = account.spent
    found = released(account=account, budget=dpf.PrivacyBudget(0.5, 1e-6), holdout=0.2)
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


SKEWED = [
    dpf.Record(*pair) for pair in [("rose", "red")] * 1800 + [("sky", "light blue"), ("sea", "blue")] * 600
]


def bias_of(found: Any, label: str) -> float:
    return found.bias[found.labels.index(label)]


def test_frequent_labels_weigh_less_where_their_numbers_are_public() -> None:
    """Most records are roses. Their weight makes up for it: the bias is that of equally many of each."""
    whole = {"holdout": 0.0, "scored_units": 3_000, "budget": dpf.PrivacyBudget(8.0, 1e-6)}
    numbers = {"red": 1800, "blue": 600, "light blue": 600}
    equal = bias_of(released(**whole), "red")
    alike = released(SKEWED, population=3_000, **whole)
    assert bias_of(alike, "red") > equal + 8 * alike.noise  # taken for bias
    for population, relation in ((None, "zero-out"), (numbers, "add-remove")):
        found = released(SKEWED, population=population, **whole)
        assert found.relation == relation
        assert abs(bias_of(found, "red") - equal) < 8 * found.noise
        assert found.noise == pytest.approx(alike.noise * 3_000 / 1_800, rel=1e-6)
    for wrong in (0, -600, 1.5, 10**400):
        with pytest.raises(dpf.InvalidPlan, match="the population of "):
            released(SKEWED, population=numbers | {"blue": wrong}, **whole)


def test_units_are_read_at_the_rate_that_is_charged() -> None:
    backend = Colours()
    account = dpf.Account.in_memory(BUDGET)
    released(backend=backend, account=account, holdout=0.0, scored_units=100)
    asked = sum(prompt.endswith(" sky\nColour:") for prompt in backend.prompts)
    assert stats.binom.cdf(asked, 1_000, 1 / 30) > 1e-9
    assert stats.binom.sf(asked, 1_000, 1 / 30) > 1e-9


@settings(max_examples=10)
@given(st.fractions(min_value=Fraction(1, 10**6), max_value=1))
def test_the_charged_rate_is_at_least_the_drawn_one(rate: Fraction) -> None:
    mean = NoisyMean.of_budget(dpf.PrivacyBudget(4.0, 1e-6), rate, 3)
    assert mean.sampling_rate == rate
    assert Fraction(mean.cost.event.sampling_rate) >= rate
    assert mean.cost.event.noise_multiplier <= mean.noise_multiplier


class Mute(Colours):
    """Has no answer for a void."""

    def answer(self, prompt: list[int]) -> list[float]:
        answers = super().answer(prompt)
        return [math.nan] * len(answers) if " void" in self.detokenize(prompt) else answers


def distance(first: list[dpf.Record], second: list[dpf.Record], population: Any) -> float:
    """Between the released sums without their common noise, in units of the sensitivity that was charged."""
    budget = dpf.PrivacyBudget(4.0, 1e-6)
    options = {"budget": budget, "population": population, "holdout": 0.0}
    one, other = (
        released(records, Mute(), random_source=random.Random(1).randbytes, **options)
        for records in (first, second)
    )
    assert one.noise == other.noise
    sigma = NoisyMean.of_budget(budget, Fraction(1), 3).noise_multiplier
    return float(np.linalg.norm(np.subtract(one.bias, other.bias))) * sigma / one.noise


pairs = st.tuples(st.sampled_from(["sky", "rose", "sea", "void"]), st.sampled_from(TASK.labels))


@settings(max_examples=10)
@given(st.lists(pairs, min_size=2, max_size=12), st.integers(0, 11))
def test_neighbouring_records_move_the_released_sum_by_the_sensitivity(things: list[Any], unit: int) -> None:
    records, place = [dpf.Record(*pair) for pair in things], unit % len(things)
    without = [*records[:place], *records[place + 1 :]]
    null = [*records[:place], dpf.Record("void", records[place].label), *records[place + 1 :]]
    numbers = {"red": 9, "blue": 5, "light blue": 1}
    assert distance(records, without, numbers) <= 1 + 1e-6
    assert distance(records, null, None) <= 1 + 1e-6


def test_control_two_units_move_it_further() -> None:
    rose = dpf.Record("rose", "red")
    assert distance([rose] * 5, [rose] * 3, dict.fromkeys(TASK.labels, 5)) > 1


# ---- a candidate of dpf.choose ------------------------------------------------------------------------


def candidates_with(found: Any) -> list[dpf.Candidate]:
    words = {"demonstrations": [ROSE], "format": COLOURS, "calibrated": False}
    return [dpf.Candidate(**words), dpf.Candidate(**words, calibration=found)]


def chosen(candidates: Any, **options: Any) -> dpf.Choice:
    budget = dpf.PrivacyBudget(2.0, 1e-6)
    return dpf.choose(TASK, named(), Colours(), candidates, **({"budget": budget, "holdout": 0.0} | options))


def test_a_released_calibration_is_chosen_and_kept() -> None:
    found = released(holdout=0.0, scored_units=3_000)
    plain, calibrated = candidates_with(found)
    assert plain != calibrated
    assert calibrated.name == "1 demonstration, released calibration"
    choice = chosen([plain, calibrated])  # without it every thing is red
    assert choice.index == 1
    assert choice.accuracy.low > 0.9
    assert choice.statement.startswith("with these demonstrations and their calibration ")
    again = dpf.Choice.from_dict(json.loads(json.dumps(choice.as_dict())))
    assert again == choice
    assert again.candidate.calibration == found


def test_a_total_covers_the_calibration_only_if_it_can() -> None:
    account = dpf.Account.in_memory(dpf.PrivacyBudget(8.0, 1e-5))
    dear, seeded = (
        released(holdout=0.0, budget=dpf.PrivacyBudget(6.0, 1e-6), random_source=source)
        for source in (None, random.Random(1).randbytes)
    )
    for found, says in ((dear, "ε = 2 for the choice"), (seeded, "no guarantee")):
        choice = chosen(candidates_with(found)[1:], account=account)
        assert not choice.covers_all  # another account paid for it, or none
        assert says in choice.statement
    paid = released(holdout=0.0, account=account, budget=dpf.PrivacyBudget(1.0, 1e-6))
    choice = chosen(candidates_with(paid)[1:], account=account)
    assert choice.covers_all
    assert "in all" in choice.statement


def test_a_calibrated_prompt_without_demonstrations_is_not_the_baseline() -> None:
    found = released(demonstrations=[], holdout=0.0, scored_units=3_000)
    bare = dpf.Candidate(format=COLOURS, calibration=found)
    choice = chosen([bare])
    assert choice.statement.startswith("with the released calibration ")
    assert choice.accuracy != choice.baseline


def test_candidates_with_a_wrong_calibration_are_refused_before_anything_is_spent() -> None:
    account, found = dpf.Account.in_memory(BUDGET), released()
    for wrong in (
        dpf.Candidate(format=COLOURS, calibration=found),
        dpf.Candidate([ROSE], calibration=found),
    ):
        with pytest.raises(dpf.InvalidPlan, match="released for another prompt"):
            chosen([wrong], account=account)
    free, bare = dpf.Task("things", "Name the colour.", "Colour", "Thing"), dpf.Candidate(calibration=found)
    with pytest.raises(dpf.InvalidPlan, match="cannot have a calibration"):
        dpf.choose(free, named(), Colours(), [bare], budget=BUDGET, account=account)
    assert account.spent.epsilon == 0.0


# ---- The calibration's sum of integers: one unit, of whatever answers, changes it by at most th ----------


probabilities = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0.0, 1.0, 1e-300, 5e-324, 1 - 2**-53, math.nan, math.inf]),
)
matrices = npst.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(2, 20)), elements=probabilities)


def clip_of(rows: NDArray[np.float64]) -> float:
    return 2 * math.sqrt(rows.shape[1])


def squared(integers: NDArray[np.int64]) -> int:
    return sum(int(one) ** 2 for one in integers)


@given(matrices, st.integers(0, 11))
def test_a_unit_changes_the_sum_by_at_most_the_norm(rows: NDArray[np.float64], unit: int) -> None:
    clip = clip_of(rows)
    whole = integers_of(rows, clip).sum(axis=0)
    gone = np.delete(rows, unit % len(rows), axis=0)  # the unit is removed
    null = rows.copy()
    null[unit % len(rows)] = 0.0  # or it has no answer
    for neighbour in (gone, null):
        assert squared(whole - integers_of(neighbour, clip).sum(axis=0)) <= GRID**2


@given(matrices, st.integers(0, 11), st.lists(st.floats(0, 3), min_size=12, max_size=12))
def test_with_any_weights_too(rows: NDArray[np.float64], unit: int, listed: list[float]) -> None:
    """Even with weights above 1, which no labels have: the integers are compared with the norm."""
    clip, weights, place = clip_of(rows), np.array(listed[: len(rows)]), unit % len(rows)
    whole = integers_of(rows, clip, weights).sum(axis=0)
    gone = integers_of(np.delete(rows, place, axis=0), clip, np.delete(weights, place)).sum(axis=0)
    assert squared(whole - gone) <= GRID**2
    lighter = np.minimum(weights, 1)
    for row, weight in zip(rows, lighter, strict=True):  # and a smaller weight makes a smaller bound
        found = integers_of(row[np.newaxis], clip, np.array([weight]))[0]
        assert squared(found) <= (weight * GRID) ** 2


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 10**9)), st.text(max_size=3))
def test_a_label_weighs_at_most_one_by_public_numbers(counts: dict[str, int], other: str) -> None:
    weights, mean = weights_of_labels(counts)
    found = weights_of_records([Record("", label) for label in (*counts, other)], weights)
    assert ((found > 0) & (found <= 1)).all()
    assert 0 < mean <= 1
    assert sum(found[:-1] >= 1) * 2 >= len(counts)  # at least half of the labels weigh 1
    total = sum(weight * count for weight, count in zip(found, counts.values(), strict=False))
    assert total == pytest.approx(float(mean) * (sum(counts.values()) or 0))


@given(matrices)
def test_a_row_depends_on_its_unit_alone(rows: NDArray[np.float64]) -> None:
    clip = clip_of(rows)
    alone = np.concatenate([integers_of(row[np.newaxis], clip) for row in rows])
    assert (integers_of(rows, clip) == alone).all()


@given(matrices)
def test_a_row_without_an_answer_is_zero(rows: NDArray[np.float64]) -> None:
    integers = integers_of(rows, clip_of(rows))
    absent = ~np.isfinite(rows).all(axis=1) | ~rows.any(axis=1)
    assert not integers[absent].any()


@pytest.mark.parametrize("labels", [2, 4, 14])
def test_the_bound_is_reached(labels: int) -> None:
    certain = np.eye(labels)[:1]
    assert squared(integers_of(certain, clip_of(certain))[0]) >= 0.999 * GRID**2


def test_control_without_the_clip_the_bound_breaks() -> None:
    certain = np.eye(4)[:1]
    with pytest.raises(AssertionError):
        assert squared(integers_of(certain, 100.0)[0] * (100.0 / clip_of(certain)).__ceil__()) <= GRID**2


def test_below_the_clip_it_is_the_centred_logarithm() -> None:
    row = np.array([[0.5, 0.3, 0.2]])
    logprobs = np.log(row[0])
    clip = clip_of(row)
    found = integers_of(row, clip)[0] * clip / GRID
    assert found == pytest.approx(logprobs - logprobs.mean(), abs=1e-5)
