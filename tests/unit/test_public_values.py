"""What reaches the private path from outside is frozen: plain numbers, tuples, whole integers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.accounting import Composition, PoissonGaussian, Tightest
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import AdaDPSyn, Gaussian, PrivatePrediction, PublicCentred, SparseVector
from dpfewshot.planning.settings import PlanSettings
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.values import counted, plural, unit_noun
from tests.support import factory
from tests.support.scripts import TASK, tickets

BUDGET = dpf.PrivacyBudget(4.0, 1e-6)
EVENTS = [PoissonGaussian(0.1, 2.0, 3), PoissonGaussian(0.1, 3.0, 3)]
LABELS = ["Glad", "Sad"]


@pytest.mark.parametrize(
    ("value", "name", "given"),
    [
        (PublicCentred(refinements=(growing := [0.3])), "refinements", growing),  # type: ignore[arg-type]
        (Composition(composed := EVENTS[:]), "events", composed),  # type: ignore[arg-type]
        (Tightest(described := EVENTS[:]), "events", described),  # type: ignore[arg-type]
        (dpf.Task("n", "i", "l", "t", labels := LABELS[:]), "labels", labels),  # type: ignore[arg-type]
        (PromptFormat("i", "t", "l", shown := LABELS[:]), "labels", shown),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_list_that_changes_later_changes_nothing(value: object, name: str, given: list[Any]) -> None:
    before = hash(value), getattr(value, name)
    given.append(given[0])
    assert (hash(value), getattr(value, name)) == before
    assert type(before[1]) is tuple


def test_a_list_that_grows_after_the_plan_adds_no_round() -> None:
    norms = [0.3]
    mechanism = PublicCentred(top_k=None, refinements=norms)  # type: ignore[arg-type]
    scale, plain = mechanism.round_multiplier(1.0), PublicCentred(top_k=None, refinements=(0.3,))
    norms += [0.3] * 5
    assert mechanism.round_multiplier(1.0) == scale
    assert mechanism == plain


def test_a_number_that_can_change_is_kept_as_it_was() -> None:
    norm = np.array([0.5])
    mechanism = PublicCentred(clip=norm[0], refinements=norm)  # type: ignore[arg-type]
    norm[0] = 0.1
    assert (mechanism.clip, mechanism.refinements) == (0.5, (0.5,))
    with pytest.raises(InvalidPlan, match="clip must be a number"):
        PublicCentred(clip=np.array(0.5))  # type: ignore[arg-type]


synthesizer = partial(factory.synthesizer, records=tickets(80), prompts_per_draw=5, max_tokens=4)


WHOLE: dict[str, Callable[[Any], object]] = {
    "releases": lambda number: SparseVector(Gaussian(), threshold=1.0, releases=number),
    "rounds": lambda number: AdaDPSyn(rounds=number, top_k=2).check(8),
    "top_k": lambda number: Gaussian(top_k=number).check(8),
    "tokens_per_draw": lambda number: PlanSettings(1, 1, 5, 1, number, 1),
    "prompts_per_draw": lambda number: synthesizer(prompts_per_draw=number),
    "population": lambda number: synthesizer(population=dict.fromkeys(TASK.labels or (), number)),
    "max_tokens": lambda number: synthesizer().generate("refund", max_tokens=number),
    "count": lambda number: dpf.release_labels(tickets(8), count=number, epsilon=1, candidates=LABELS),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("number", [1.5, 1.0, True, 0, "1", float("nan")])
def test_an_integer_setting_is_whole(name: str, number: object) -> None:
    with pytest.raises(InvalidPlan, match=rf"{name}\b.* must"):
        WHOLE[name](number)


REAL: dict[str, Callable[[Any], object]] = {
    "temperature": lambda number: Gaussian(temperature=number),
    "top_p": lambda number: Gaussian(top_p=number),
    "clip": lambda number: PrivatePrediction(clip=number),
    "threshold": lambda number: SparseVector(Gaussian(), threshold=number, releases=1),
    "test_share": lambda number: SparseVector(Gaussian(), threshold=1.0, releases=1, test_share=number),
    "rounds": lambda number: AdaDPSyn(rounds=10**9 if number == -1 else number, top_k=2).check(8),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("number", ["1", True, -1, 10**4, float("nan"), [1]])
def test_a_setting_is_a_number_within_its_range(name: str, number: object) -> None:
    with pytest.raises(InvalidPlan, match=rf"{name} must be a .*number"):
        REAL[name](number)


@pytest.mark.parametrize("name", ["top_p", "clip", "threshold", "test_share"])
def test_a_share_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidPlan, match=f"{name} must be a number"):
        REAL[name](0.0)


def test_tokens_that_are_no_whole_number_draw_nothing() -> None:
    made = synthesizer()
    with pytest.raises(InvalidPlan, match="max_tokens"):
        made.generate("refund", max_tokens=1.5)  # type: ignore[arg-type]
    assert made.spent.epsilon == 0


def test_a_unit_is_called_by_its_column_without_what_says_that_it_is_a_number() -> None:
    columns = (
        "customer_id",
        "patient_no",
        "client_ref",
        "User-Number",
        "author",
        "customer_account",
        "grandkey",
        "_id",
        None,
    )
    assert [unit_noun(each) for each in columns] == [
        "customer", "patient", "client", "User", "author", "customer", "grandkey", "_id", "record"
    ]  # fmt: skip


def test_several_of_a_noun() -> None:
    assert [*map(plural, ("customer", "policy", "survey"))] == ["customers", "policies", "surveys"]
    assert [*map(plural, ("branch", "address", "box"))] == ["branches", "addresses", "boxes"]
    assert (counted(1, "entry"), counted(2, "entry")) == ("1 entry", "2 entries")
