"""What the planner decides, from public numbers alone."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import (
    AdaDPSyn,
    Gaussian,
    InvisibleInk,
    Mechanism,
    PublicCentred,
    ReportNoisyMax,
    WordHistogram,
)
from dpfewshot.planning.defaults import INK_TEMPERATURE, decide, planned_mechanism, prompts_within
from dpfewshot.planning.plan import GenerationPlan, Stratum
from dpfewshot.planning.planner import Planner, rate_of
from dpfewshot.planning.settings import PROMPT_TOKEN_LIMIT, PlanSettings, Settings, preset
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.values import NO_PRIVACY, PrivacyBudget, Record, Relation
from tests.support import factory
from tests.support.scripts import TASK, Sentence, tickets

BUDGET = PrivacyBudget(epsilon=1.0, delta=1e-5)
GAUSSIAN = Gaussian(top_k=8)


def planner(population: int = 400, mechanism: Mechanism = GAUSSIAN, **settings: Any) -> Planner:
    backend = Sentence()
    template = PlanSettings(**{"max_tokens": 40, "shots_per_label": 1, "record_token_cap": 100} | {
        "prompts_per_draw": 1, "records_per_prompt": 1, "tokens_per_draw": 1
    } | settings)  # fmt: skip
    strata = (Stratum("refund", ("refund",), population), Stratum("delivery", ("delivery",), 2 * population))
    writer = PromptWriter(TASK, backend, 100)
    return Planner(mechanism, writer, template, BUDGET, strata, Relation.ZERO_OUT)


def synthesizer(**settings: Any) -> dpf.Synthesizer:
    return factory.synthesizer(
        **{
            "mechanism": None,
            "prompts_per_draw": None,
            "tokens_per_draw": None,
            "max_tokens": 40,
            "budget": BUDGET,
        }
        | settings
    )


def decided(
    chosen: Settings,
    tokens: int = PROMPT_TOKEN_LIMIT,
    population: int = 400,
    mechanism: Mechanism = GAUSSIAN,
    kept_prompts: int = 0,
) -> GenerationPlan:
    chosen = dataclasses.replace(chosen, prompt_token_limit=tokens)
    numbers = dataclasses.asdict(chosen.decided(max_tokens=40, shots_per_label=1))
    some = planner(population, mechanism, **numbers)
    some.backend.kept_prompts = kept_prompts
    made, reasons = decide(some, chosen)
    return made.plan(reasons)


@pytest.mark.parametrize(("population", "tokens"), [(100, 20_000), (400, 5_000), (5000, 20_000)])
def test_few_other_draws_within_the_work_have_less_noise(population: int, tokens: int) -> None:
    mechanism = PublicCentred(top_k=8)
    found = decided(Settings(), tokens, population, mechanism)
    assert found.prompt_tokens <= tokens
    assert found.noise_on_mean is not None
    for every in (1, 3, 20, 40):
        some = planner(population, mechanism, tokens_per_draw=every)
        most = min(population, tokens // some.tokens_of_a_prompt)
        other = some.with_settings(prompts_per_draw=max(1, most)).plan()
        assert other.noise_on_mean is not None
        assert found.noise_on_mean <= 1.25 * other.noise_on_mean


def test_words_are_counted_where_they_can_be() -> None:
    plan = synthesizer().plan
    assert plan.mechanism == "word-histogram"
    assert plan.reasons[0].startswith("mechanism word-histogram: one noisy count")
    assert plan.reasons[1] == "M=200: the one draw of a label takes as many of its units as it can"
    assert [one.steps for one in plan.strata] == [1, 1]


FIELDS = dpf.Task("fields", "Write.", "Kind", "", ("a",), ("Text", "Mood"))
SHAPED = dpf.Task("shaped", "Write.", "Kind", "Text", ("a",), schema="[0-9]{3}")


@pytest.mark.parametrize(
    ("task", "chosen"),
    [(FIELDS, Settings()), (SHAPED, Settings())]
    + [
        (TASK, Settings(**{name: 2}))
        for name in ("prompts_per_draw", "records_per_prompt", "tokens_per_draw")
    ],
)
def test_where_words_cannot_be_counted_tokens_are_drawn(task: dpf.Task, chosen: Settings) -> None:
    mechanism, why = planned_mechanism(task, chosen, 500)
    assert mechanism == InvisibleInk(top_k=500, temperature=INK_TEMPERATURE)
    assert why.startswith("mechanism invisible-ink:")
    assert planned_mechanism(TASK, Settings(), 500)[0] == WordHistogram()


def test_what_is_said_to_fit_without_records_in_prompts_fits() -> None:
    some = planner(mechanism=WordHistogram())
    some.backend.context_tokens = 48
    with pytest.raises(InvalidPlan) as refused:
        some.check_lengths()
    [tokens, context] = map(int, re.findall(r"(?:max|context)_tokens=(\d+)", str(refused.value)))
    assert "record" not in str(refused.value)
    some.with_settings(max_tokens=tokens).check_lengths()
    with pytest.raises(InvalidPlan):
        some.with_settings(max_tokens=tokens + 1).check_lengths()
    some.backend.context_tokens = context
    some.check_lengths()
    some.backend.context_tokens = context - 1
    with pytest.raises(InvalidPlan):
        some.check_lengths()


def test_draws_of_fixed_size_take_the_mechanism_that_allows_them() -> None:
    plan = synthesizer(sampling="fixed-size", prompts_per_draw=20, tokens_per_draw=1).plan
    assert plan.mechanism == "public-centred"
    assert "draws of a fixed size" in plan.reasons[0]


def test_what_is_given_stays() -> None:
    numbers = {"prompts_per_draw": 7, "records_per_prompt": 2, "tokens_per_draw": 5}
    made, reasons = decide(planner(**numbers), Settings(**numbers, prompt_token_limit=1))
    assert (made.settings.prompts_per_draw, made.settings.tokens_per_draw) == (7, 5)
    assert reasons == ()


def test_given_prompts_take_four_draws_or_one_if_the_work_does_not_allow_them() -> None:
    for prompts, each in ((20, 10), (300, 40)):
        found = decided(Settings(prompts_per_draw=prompts), 20_000)
        assert (found.settings.prompts_per_draw, found.settings.tokens_per_draw) == (prompts, each)


def test_each_stratum_has_as_many_prompts_as_its_units_allow() -> None:
    found = decided(Settings(), 10**6, 30, Gaussian(top_k=8))
    assert [one.draws.prompts for one in found.strata] == [30, 60]
    assert "M=60: as many as the 60 units of label 'delivery'" in found.reasons[1]
    alike = decided(Settings(prompts_per_draw=30), 10**6, 30, Gaussian(top_k=8))
    assert found.strata[0].noise_on_mean == alike.strata[0].noise_on_mean
    assert (found.strata[1].noise_on_mean or 0.0) < (alike.strata[1].noise_on_mean or 0.0)
    with pytest.raises(InvalidPlan, match=r"above the population 30 .* prompts_per_draw=30 would fit"):
        decided(Settings(prompts_per_draw=31), 10**6, 30)  # what is given is never reduced


@given(st.integers(1, 10**4), st.integers(1, 10**4), st.integers(1, 3), st.sampled_from([0.0, 0.2]))
def test_a_stratum_never_draws_more_prompts_than_it_allows(
    population: int, prompts: int, records: int, holdout: float
) -> None:
    settings = dataclasses.replace(
        planner(holdout=holdout, records_per_prompt=records).settings, prompts_per_draw=prompts
    )
    inside, most = settings.within(population), settings.most_prompts(population)
    assert inside.prompts_per_draw == max(1, min(prompts, most))
    if most:
        assert rate_of(inside, Stratum(None, ("refund",), population)) <= 1


def test_the_largest_stratum_and_the_backend_limit_the_prompts() -> None:
    given = Gaussian(top_k=8)
    assert decided(Settings(), 10**6, 30, given).settings.prompts_per_draw == 60
    for every, limited in ((40, True), (1, False)):
        found = decided(Settings(tokens_per_draw=every), 10**6, 400, given, kept_prompts=75)
        assert (found.settings.prompts_per_draw == 47) is limited
        assert found.settings.prompts_per_draw >= 47


@pytest.mark.parametrize(("every", "prompts", "said"), [(40, 76, True), (40, 75, False), (1, 76, False)])
def test_given_prompts_that_the_backend_does_not_keep_are_named(
    every: int, prompts: int, *, said: bool
) -> None:
    chosen = Settings(prompts_per_draw=prompts, tokens_per_draw=every)
    reasons = decided(chosen, 10**6, kept_prompts=75).reasons
    assert any("more than the backend keeps (kept_prompts=75)" in each for each in reasons) is said


@given(st.integers(5, 10**5))
def test_a_draw_fits_up_to_four_deviations(kept: int) -> None:
    prompts = prompts_within(kept)
    assert prompts + 4 * prompts**0.5 <= kept + 1e-6
    assert (prompts + 1) + 4 * (prompts + 1) ** 0.5 > kept


def test_a_mechanism_without_noise_on_probabilities_is_planned_too() -> None:
    found = decided(Settings(), mechanism=ReportNoisyMax(top_k=8))
    assert found.noise_on_mean is None
    assert found.settings.prompts_per_draw > 1


def test_impossible_settings_say_why() -> None:
    with pytest.raises(InvalidPlan, match="could be free"):
        decided(Settings(), mechanism=dpf.mechanisms.SparseVector(Gaussian(top_k=8), 0.5, 40))
    with pytest.raises(InvalidPlan, match="prompt_token_limit"):
        synthesizer(prompt_token_limit=0)
    with pytest.raises(InvalidPlan, match="prompts_per_draw"):
        synthesizer(prompts_per_draw=0)


def test_the_decision_depends_on_public_numbers_alone() -> None:
    """Other texts, and other numbers of records behind a public population: the same plan."""
    population = dict.fromkeys(TASK.labels or (), 500)
    few = [Record("x", label) for label in TASK.labels or () for _ in range(3)]
    plans = [
        dpf.Synthesizer(TASK, records, Sentence(), budget=BUDGET, population=population).plan
        for records in (tickets(), few)
    ]
    assert plans[0] == plans[1]


def test_reasons_are_in_the_document() -> None:
    plan = synthesizer().plan
    assert len(plan.reasons) == 2
    assert plan.as_dict()["reasons"] == list(plan.reasons)


def test_a_plan_without_privacy_is_planned_alike_and_another_keeps_its_budget() -> None:
    made = synthesizer(budget=NO_PRIVACY)
    assert (made.plan.mechanism, made.plan.noise_multiplier) == ("word-histogram", 0.0)
    assert not made.generate("refund").certified
    made = synthesizer().generate_all()
    assert all(one.certified for one in made)
    assert made.spent.epsilon <= BUDGET.epsilon


def fresh_draws(prompts: int, records: int) -> Settings:
    return Settings(prompts_per_draw=prompts, records_per_prompt=records, tokens_per_draw=1)


def test_presets_are_the_papers_settings() -> None:
    trec = dpf.tasks.TREC
    assert preset("tang", trec, BUDGET, 1000) == (Gaussian(top_k=100), fresh_draws(80, 1))
    assert preset("tang", dpf.tasks.MIT_G, None, 1000) == (Gaussian(top_k=100), fresh_draws(20, 4))
    assert preset("tang", TASK, BUDGET, 8) == (Gaussian(top_k=8), fresh_draws(20, 1))
    paper = preset("adadpsyn", dpf.tasks.MIT_D, PrivacyBudget(2.0, 1e-5), 1000)
    assert paper == (AdaDPSyn.preset("mit-d", epsilon=2), fresh_draws(40, 1))
    other = preset("adadpsyn", TASK, PrivacyBudget(3.0, 1e-5), 1000)
    assert other == (AdaDPSyn.preset("trec", epsilon=4), fresh_draws(20, 2))
    assert preset("adadpsyn", trec, None, 1000) == preset("adadpsyn", trec, PrivacyBudget(4.0, 1e-5), 1000)
    with pytest.raises(InvalidPlan, match="tang, adadpsyn"):
        preset("tan", trec, BUDGET, 1000)


def test_what_is_given_overrides_a_preset_and_published_accounting_takes_one() -> None:
    plan = synthesizer(preset="tang", prompts_per_draw=30).plan
    settings = plan.settings
    assert (plan.mechanism, settings.prompts_per_draw, settings.tokens_per_draw) == ("gaussian", 30, 1)
    assert plan.reasons == ()
    plan = synthesizer(sampling="fixed-size", accounting="published").plan
    assert (plan.mechanism, plan.settings.prompts_per_draw) == ("gaussian", 20)


def test_a_holdout_leaves_fewer_prompts() -> None:
    whole, held = (
        synthesizer(mechanism=Gaussian(8), prompt_token_limit=10**6, tokens_per_draw=40, holdout=f)
        for f in (0.0, 0.5)
    )
    assert whole.plan.settings.prompts_per_draw == 200
    assert held.plan.settings.prompts_per_draw == 100
