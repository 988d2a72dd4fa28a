"""`Synthesizer` end to end, with scripted language models."""

import random
from typing import Any

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.values import Record
from tests.support.factory import synthesizer
from tests.support.scripts import WORDS, Sentence, tickets


def test_a_demonstration_says_what_it_is() -> None:
    made = synthesizer(prompts_per_draw=40)
    assert str(made) == f"Synthesizer({made.plan})"
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)
    demonstration = made.generate("refund")
    assert demonstration.text == "my parcel is late"
    assert demonstration.label == "refund"
    assert demonstration.token_count == 5
    assert demonstration.certified
    assert demonstration.relation == "zero-out"
    assert demonstration.mechanism == "gaussian"
    assert demonstration.spent == dpf.PrivacySpend(made.plan.epsilon, 1e-5)
    assert 3.9 < demonstration.spent.epsilon <= 4.0


def test_the_default_mechanism_serves_a_small_vocabulary() -> None:
    backend = Scripted(vocabulary=["a", "b", "\n"], next_token=lambda _prompt: [0.6, 0.3, 0.1])
    made = synthesizer(backend, mechanism=None, max_tokens=3)
    assert made.generate("refund").certified


def test_labels_compose_in_parallel() -> None:
    made = synthesizer(prompts_per_draw=40)
    demonstrations = made.generate_all()
    assert [one.label for one in demonstrations] == ["refund", "delivery"]
    assert made.spent.epsilon <= 4.0
    assert made.spent.delta == 1e-5
    assert made.account is not None
    assert made.account.remaining.epsilon < 0.1


def test_population_makes_the_relation_add_remove_and_fixes_the_rate() -> None:
    made = synthesizer(population={"refund": 1000, "delivery": 500}, prompts_per_draw=20)
    assert made.plan.relation == "add-remove"
    assert made.plan.stratum_of("refund").sampling_rate == pytest.approx(0.02)
    assert made.plan.sampling_rate == pytest.approx(0.04)


def test_leftover_draws_serve_further_shots_and_no_more() -> None:
    made = synthesizer(Sentence(sure=0.999999), prompts_per_draw=100)
    assert made.generate("refund").token_count == 5
    with pytest.raises(dpf.BudgetExceeded, match="max_tokens=3"):
        made.generate("refund")
    assert made.generate("refund", max_tokens=3).token_count == 3
    with pytest.raises(dpf.BudgetExceeded):
        made.generate("refund", max_tokens=1)
    assert made.spent.epsilon == made.plan.stratum_of("refund").spend.epsilon  # type: ignore[union-attr]


def test_the_rest_of_a_draw_is_forfeited() -> None:
    made = synthesizer(Sentence(sure=0.999999), prompts_per_draw=100, tokens_per_draw=4)
    assert made.plan.steps == 2
    made.generate("refund")  # five tokens: the second block has three left that nobody may use
    with pytest.raises(dpf.BudgetExceeded):
        made.generate("refund", max_tokens=1)


def test_every_token_has_its_own_noise() -> None:
    texts = {synthesizer(Sentence(sure=0.2), prompts_per_draw=1).generate("refund").text for _ in range(8)}
    assert len(texts) > 1


def test_extraction_tasks_share_one_budget_over_all_labels() -> None:
    task = dpf.Task(name="film", instruction="Write.", label_field="Kind", text_field="Ticket")
    records = [Record(f"film {i}", f"genre {i}") for i in range(400)]
    made = synthesizer(
        Sentence(sure=0.999999), records, task=task, labels=["drama", "comedy"], prompts_per_draw=40
    )
    assert made.plan.steps == 16
    assert made.plan.strata[0].scope is None
    assert [one.label for one in made.generate_all()] == ["drama", "comedy"]
    assert made.spent.epsilon == made.plan.epsilon


def test_no_privacy_says_so_and_is_refused_a_ledger() -> None:
    made = synthesizer(budget=dpf.NO_PRIVACY)
    demonstration = made.generate("refund")
    assert demonstration.text == "my parcel is late"
    assert not demonstration.certified
    assert demonstration.as_line()["epsilon"] is None
    assert made.plan.epsilon is None
    with pytest.raises(dpf.InvalidPlan, match="is refused an account"):
        synthesizer(budget=dpf.NO_PRIVACY, account=dpf.Account.in_memory(dpf.PrivacyBudget(1.0, 1e-5)))


def test_a_seed_says_private_false() -> None:
    one, other = (synthesizer(random_source=random.Random(3).randbytes).generate("refund") for _ in "ab")
    assert one == other
    assert not one.certified
    assert one.spent is None


@pytest.mark.parametrize("stated", [False, "no, sorry"])
def test_a_batch_variant_backend_is_refused_unless_told(stated: Any) -> None:
    variant = Scripted(WORDS, Sentence().answer, batch_invariant=stated)
    with pytest.raises(dpf.BackendNotBatchInvariant):
        synthesizer(variant)
    demonstration = synthesizer(variant, allow_batch_variance=True).generate("refund")
    assert not demonstration.certified
    assert demonstration.as_line()["epsilon"] is None


def test_records_of_unknown_labels_are_refused_without_quoting_them() -> None:
    with pytest.raises(dpf.InvalidRecords, match="record 3") as caught:
        synthesizer(records=[*tickets(2), Record("x", "embarrassing")])
    assert "embarrassing" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prompts_per_draw": 201}, "prompts_per_draw=200 would fit"),
        ({"prompts_per_draw": 60, "records_per_prompt": 4}, "prompts_per_draw=50 would fit"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"shots_per_label": 0}, "shots_per_label"),
        ({"shots_per_label": 10**6 + 1}, "shots_per_label must be at most 1000000"),
        ({"tokens_per_draw": 9}, "tokens_per_draw"),
        ({"records_per_prompt": 0}, "records_per_prompt"),
        ({"mechanism": dpf.mechanisms.Gaussian(top_k=9)}, "top_k"),
        ({"population": {"refund": 200}}, "delivery"),
        ({"population": {"refund": 0, "delivery": 1}}, "refund"),
        ({"population": 400}, "each label"),
        ({"labels": []}, "names no label: leave it out for all labels"),
        ({"labels": ["refund", "refund"]}, "names a label twice"),
        ({"max_tokens": np.int64(5)}, r"max_tokens .*: write int\(...\)"),
        ({"budget": dpf.PrivacyBudget(1e-9, 1e-5)}, "epsilon"),
    ],
)
def test_settings_that_no_plan_can_honour(options: dict[str, Any], says: str) -> None:
    with pytest.raises(dpf.InvalidPlan, match=says):
        synthesizer(**options)


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (float("nan"), 1e-5), (1, 0), (1, 1)])
def test_budgets_outside_their_range(epsilon: float, delta: float) -> None:
    with pytest.raises(dpf.InvalidPlan):
        dpf.PrivacyBudget(epsilon, delta)


def test_unknown_labels() -> None:
    with pytest.raises(dpf.InvalidTask):
        synthesizer(labels=["praise"])
    with pytest.raises(dpf.InvalidPlan):
        synthesizer(labels=["refund"]).generate("delivery")


def test_delta_of_one_over_n_warns() -> None:
    assert "1/200" in synthesizer(budget=dpf.PrivacyBudget(4, 1 / 200)).plan.warnings[0]
    assert synthesizer().plan.warnings == ()
