"""Evaluation: trials, results that resume, scores known by hand, and honest intervals."""

import dataclasses
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import dpfewshot as dpf
from bench.pages import difference
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.evaluation import (
    Cell,
    Experiment,
    InstructionOnly,
    NonPrivateSample,
    Results,
    Synthetic,
    Trial,
    ZeroShot,
    evaluate,
    read_cells,
    score,
    summarise,
)
from dpfewshot.mechanisms import Gaussian

TASK = dpf.Task("mood", "Write a note.", "Mood", "Note", ("glad", "sad"))
FREE = dpf.Task("name", "Write a note.", "Name", "Note")
WORDS = ["sun", "rain", "glad", "sad", "ann", "bob", "\n"]
RECORDS = [dpf.Record("sun sun", "glad"), dpf.Record("rain rain", "sad")] * 20
TEST = [dpf.Record("sun", "glad"), dpf.Record("rain", "sad"), dpf.Record("rain", "glad")]
SUN, RAIN, GLAD, SAD, ANN, BOB, END = range(7)


def reader(bias: float = 1.0, seen: list[list[int]] | None = None) -> dpf.backends.Scripted:
    """A model that knows sun for glad and rain for sad, by odds of 3 to 1, and says glad with a bias."""

    def next_token(prompt: list[int]) -> list[float]:
        if seen is not None:
            seen.append(list(prompt))
        last = next((token for token in reversed(prompt) if token in (SUN, RAIN)), None)
        odds = {SUN: 3.0, RAIN: 1 / 3}.get(last, 1.0) if prompt[-1] not in (SUN, RAIN) else 1.0
        glad = bias * odds
        weights = [0.1, 0.1, glad, 1.0, 0.1, 0.1, 0.1]
        return [weight / sum(weights) for weight in weights]

    return dpf.backends.Scripted(vocabulary=WORDS, next_token=next_token)


def experiment(**changes: object) -> Experiment:
    settings = {
        "task": TASK,
        "records": RECORDS,
        "test": TEST,
        "writer": reader(),
        "writer_name": "reader",
        "delta": 1e-5,
    }
    return Experiment(**{**settings, **changes})


def cell(outcomes: str, repetition: int = 0, **changes: object) -> Cell:
    first = Cell(
        task="mood",
        model="reader",
        writer="reader",
        condition="gaussian",
        epsilon_asked=1.0,
        epsilon=0.99,
        delta=1e-5,
        relation="zero-out",
        shots=4,
        repetition=repetition,
        items=len(outcomes),
        outcomes=outcomes,
        uncalibrated=None,
        population={"glad": 20, "sad": 20},
    )
    return dataclasses.replace(first, **changes)


def synthetic(**changes: object) -> Synthetic:
    settings = {"mechanism": Gaussian(top_k=None), "prompts_per_draw": 5, "max_tokens": 3}
    return Synthetic("gaussian", **{**settings, **changes})


def test_calibration_takes_the_bias_away_and_without_it_the_bias_decides() -> None:
    assert score(TASK, reader(), Demonstrations(), TEST).outcomes == "110"
    found = score(TASK, reader(bias=20.0), Demonstrations(), TEST)
    assert found.outcomes == "110"
    assert found.uncalibrated == "101"  # all are called glad
    assert found.batch_calibrated == "110"


def test_an_extracted_label_counts_whatever_its_case_and_spaces() -> None:
    def next_token(prompt: list[int]) -> list[float]:
        following = END if prompt[-1] in (ANN, BOB) else ANN if RAIN in prompt else BOB
        return [0.94 if token == following else 0.01 for token in range(7)]

    model = dpf.backends.Scripted(vocabulary=WORDS, next_token=next_token)
    test = [dpf.Record("sun", " BOB"), dpf.Record("rain", "ann"), dpf.Record("sun", "ann")]
    found = score(FREE, model, Demonstrations(), test)
    assert (found.outcomes, found.uncalibrated) == ("110", None)


def test_labels_of_a_trial_are_fair_and_the_same_for_every_condition() -> None:
    task = dataclasses.replace(TASK, labels=tuple("abcdef"))
    run = experiment(task=task, test=[dpf.Record("sun", "a")])
    orders = set()
    for repetition in range(5):
        twelve = run.labels_of(Trial(ZeroShot(), 0.0, 12, repetition))
        assert sorted(twelve[:6]) == sorted(twelve[6:]) == list("abcdef")
        assert run.labels_of(Trial(NonPrivateSample(), None, 4, repetition)) == twelve[:4]
        orders.add(twelve)
    assert len(orders) == 5


def test_cells_state_what_the_plan_reserved_not_a_sum_over_demonstrations() -> None:
    results = Results()
    evaluate(experiment(), [Trial(synthetic(), 2.0, 4)], results)
    (one,) = results.cells
    assert one.epsilon_asked == 2.0
    assert 1.9 < one.epsilon <= 2.0  # type: ignore[operator]
    assert one.delta is not None
    assert one.delta <= 1e-5
    assert (one.relation, one.shots, one.population) == ("zero-out", 4, {"glad": 20, "sad": 20})
    assert one.confidential


def test_the_default_is_what_a_synthesizer_does_without_settings() -> None:
    trial, one = Trial(Synthetic("default", None, prompts_per_draw=None), 2.0, 4), experiment()
    measured = trial.condition.synthesizer(one.request(trial)).plan
    assert measured.mechanism == "word-histogram"
    budget = dpf.PrivacyBudget(2.0, 1e-5)
    meant = dpf.Synthesizer(TASK, one.records, reader(), budget=budget, shots_per_label=2).plan
    assert measured == meant


@pytest.mark.parametrize(
    ("condition", "epsilon", "shots", "stated"),
    [
        (ZeroShot(), 0.0, 0, 0.0),
        (InstructionOnly(3), 0.0, 4, 0.0),
        (NonPrivateSample(), None, 4, None),
        (synthetic(), None, 4, None),
    ],
)
def test_baselines_state_what_they_cost(
    condition: Synthetic, epsilon: float | None, shots: int, stated: float | None
) -> None:
    results = Results()
    evaluate(experiment(), [Trial(condition, epsilon, shots)], results)
    assert results.cells[0].epsilon == stated


def test_non_private_samples_are_records_with_their_own_labels() -> None:
    task = dataclasses.replace(TASK, labels=None)
    run = experiment(task=task, labels=("glad",), test=[dpf.Record("sun", "glad")])
    made = NonPrivateSample().demonstrations(run.request(Trial(NonPrivateSample(), None, 8)))
    assert {(one.text, one.label) for one in made} <= {("sun sun", "glad"), ("rain rain", "sad")}
    assert len(made) == 8
    assert made.spent is None


def test_an_interrupted_evaluation_resumes_and_asks_for_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    trials = [Trial(synthetic(), epsilon, 2, repetition) for epsilon in (1.0, None) for repetition in (0, 1)]
    evaluate(experiment(), trials[:3], Results(path))
    with path.open("a") as file:
        file.write('{"task": "mo')  # a run died here
    results = Results(path)
    assert len(results.cells) == 3
    evaluate(experiment(), trials, results)
    assert [(one.epsilon_asked, one.repetition) for one in results.cells[3:]] == [(None, 1)]
    assert Results(path).cells == results.cells
    assert [json.loads(line)["correct"] for line in path.read_text().splitlines()] == [
        one.outcomes.count("1") for one in results.cells
    ]


def test_results_can_be_read_wherever_the_last_line_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results = Results(path)
    evaluate(experiment(), [Trial(synthetic(), 1.0, 2)], results)
    results.add(dataclasses.replace(results.cells[0], writer="modèle"))
    whole = path.read_bytes()
    for end in range(whole.index(b"\n"), len(whole)):
        path.write_bytes(whole[:end])
        assert len(Results(path).cells) == whole[:end].count(b"\n")


def test_other_settings_are_measured_anew_and_never_taken_for_the_old_ones(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    made = results.cells
    for changes in ({}, {}, {"prompts_per_draw": 6}, {"max_tokens": 2}, {"mechanism": Gaussian(top_k=6)}):
        evaluate(experiment(), [Trial(synthetic(**changes), 1.0, 2)], results)
    assert len(made) == 4
    evaluate(experiment(delta=1e-6), [Trial(synthetic(), 1.0, 2)], results)
    evaluate(experiment(labels=("sad",)), [Trial(synthetic(), 1.0, 2)], results)
    assert len({one.description for one in made}) == len(made) == 6
    assert "sun" not in (tmp_path / "results.jsonl").read_text()


def test_units_are_counted_and_not_their_records() -> None:
    records = [
        dataclasses.replace(one, unit=f"{one.label}-{place // 4}") for place, one in enumerate(RECORDS)
    ]
    results = Results()
    run = experiment(records=records)
    evaluate(run, [Trial(synthetic(prompts_per_draw=50), 1.0, 2)], results)
    assert results.cells[0].population == {"glad": 10, "sad": 10}
    plan = synthetic(prompts_per_draw=50).synthesizer(run.request(Trial(synthetic(), 1.0, 2))).plan
    assert plan.settings.prompts_per_draw == 10


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{}", "a cell has no 'task'"),
        ("[]", "a cell is not an object"),
        ("not json", "is not a cell"),
        (json.dumps(cell("01").as_dict() | {"shots": "4"}), "a cell has a 'shots' of the wrong type"),
        (json.dumps(cell("01").as_dict() | {"items": 3}), "outcomes that do not fit its items"),
    ],
)
def test_a_line_that_is_no_cell_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(cell("01").as_dict()) + "\n\n" + line + "\n")
    for reader in (Results, read_cells):
        with pytest.raises(dpf.InvalidRecords, match=f"line 3: .*{says}"):
            reader(path)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(dpf.InvalidRecords, match="cannot be read"):
        read_cells(tmp_path / "nothing.jsonl")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(dpf.InvalidRecords, match="UTF-8"):
        read_cells(tmp_path / "latin")
    with pytest.raises(dpf.DPFewShotError, match="cannot write"):
        Results(tmp_path / "nowhere" / "results.jsonl").add(cell("01"))


def test_an_evaluation_that_is_still_being_written_is_read_and_not_changed(tmp_path: Path) -> None:
    """And a cell that does not say so is confidential."""
    path, line = tmp_path / "results.jsonl", cell("01", confidential=False).as_dict()
    del line["confidential"]
    whole = json.dumps(line)
    path.write_text(f"{whole}\n{whole[:50]}")
    assert read_cells(path) == [cell("01")]
    assert path.read_text().endswith(whole[:50])


def test_test_items_are_checked_and_not_quoted() -> None:
    with pytest.raises(dpf.InvalidRecords, match="no test item"):
        experiment(test=[])
    with pytest.raises(dpf.InvalidRecords, match="its labels are glad, sad") as caught:
        experiment(test=[dpf.Record("sun", "private-label")])
    assert "private-label" not in str(caught.value)
    with pytest.raises(dpf.InvalidPlan, match="say which"):
        experiment(task=FREE)


def test_summaries_are_of_cells_that_differ_in_their_repetition_alone() -> None:
    cells = [cell("1100"), cell("1110", 1), cell("0000", epsilon_asked=None, epsilon=None, delta=None)]
    first, second = summarise(cells)
    assert (first.accuracy, first.repetitions, first.epsilon) == (0.625, 2, 1.0)
    assert first.condition == "gaussian"
    assert first.low <= first.accuracy <= first.high
    assert (second.accuracy, second.low, second.high, second.epsilon) == (0.0, 0.0, 0.0, None)


@pytest.mark.parametrize("kind", ["outcomes", "uncalibrated", "batch_calibrated"])
@pytest.mark.parametrize("wrong", ["11", "1102"])
def test_outcomes_of_another_number_of_items_are_no_cell(kind: str, wrong: str) -> None:
    line = cell("1100", uncalibrated="1000", batch_calibrated="1110").as_dict()
    assert Cell.from_dict(line).outcomes == "1100"
    with pytest.raises(ValueError, match="outcomes"):
        Cell.from_dict({**line, kind: wrong})


def test_outcomes_that_a_cell_does_not_have_are_not_made_up() -> None:
    whole = cell("1111", uncalibrated="0001", batch_calibrated="0011")
    for calibration, accuracy in (("contextual", 1.0), ("none", 0.25), ("batch", 0.5)):
        (one,) = summarise([whole], calibration=calibration)
        assert (one.accuracy, one.calibration) == (accuracy, calibration)
    with pytest.raises(dpf.InvalidRecords, match="calibration='batch'"):
        summarise([dataclasses.replace(whole, batch_calibrated=None)], calibration="batch")
    (extracted,) = summarise([cell("1100")], calibration="batch")
    assert (extracted.accuracy, extracted.calibration) == (0.5, None)


def test_the_same_repetitions_are_compared_one_by_one() -> None:
    """Their labels are the same: what those do to both conditions is no difference."""
    first = [cell("11111111"), cell("00000000", 1), cell("11110000", 2)]
    found = difference(first, first)
    assert found == difference(first, first)
    (whole,) = summarise(first)
    assert (whole.low, whole.high) == (0.0, 1.0)  # never below none or above all
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)
    moved = [cell(one.outcomes, one.repetition + 1) for one in first]
    apart = difference(first, moved)
    assert apart.low < -0.5
    assert apart.high > 0.5
    with pytest.raises(dpf.InvalidRecords, match="different numbers"):
        difference(first, [cell("11")])


ITEMS, RIGHT = 200, 150


def of(right: int, repetition: int = 0) -> Cell:
    return cell("1" * right + "0" * (ITEMS - right), repetition)


def test_the_bootstrap_of_one_repetition_is_binomial() -> None:
    """The resampled number of right items is Binomial(200, 0.75); its ends are known to about an item."""
    (found,) = summarise([of(RIGHT)])
    low, high = stats.binom.ppf([0.025, 0.975], ITEMS, RIGHT / ITEMS) / ITEMS
    assert found.low == pytest.approx(low, abs=2 / ITEMS)
    assert found.high == pytest.approx(high, abs=2 / ITEMS)


def test_repetitions_that_differ_have_the_interval_of_a_t_variable() -> None:
    """Where repetitions differ much, items add little to it."""
    rights = (20, 60, 100, 140, 180)
    (found,) = summarise([of(right, number) for number, right in enumerate(rights)])
    error = np.std([right / ITEMS for right in rights], ddof=1) / math.sqrt(len(rights))
    reach = stats.t.ppf(0.975, len(rights) - 1) * error
    assert found.low == pytest.approx(0.5 - reach, rel=0.25)
    assert found.high == pytest.approx(0.5 + reach, rel=0.1)


def coverage(effect: float, shrunk: float = 1.0) -> int:
    """In how many of 200 simulated evaluations the interval, shrunk around its middle, holds the truth.

    Items have log-odds with a standard deviation of 1, and repetitions of `effect`.
    """
    generator = random.Random(7)

    def outcome(log_odds: float) -> str:
        return "1" if generator.random() < 1 / (1 + math.exp(-log_odds)) else "0"

    held = 0
    for _ in range(200):
        items = [generator.gauss(0, 1) for _ in range(60)]
        repetitions = [generator.gauss(0, effect) for _ in range(3)]
        (found,) = summarise(
            [
                cell("".join(outcome(item + repetition) for item in items), number)
                for number, repetition in enumerate(repetitions)
            ]
        )
        half = shrunk * (found.high - found.low) / 2
        held += abs((found.high + found.low) / 2 - 0.5) <= half
    return held


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.0, 0.5, 2.0])
def test_intervals_hold_the_truth_as_often_as_they_say(effect: float) -> None:
    """Of 200, 95 % are 190: at 170 or more p > 1e-9. Intervals of half the width hold it less often."""
    assert coverage(effect) >= 170
    assert coverage(effect, shrunk=0.4) < 170
