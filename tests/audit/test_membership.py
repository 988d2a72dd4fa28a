import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfewshot.audit.membership import (
    MembershipTrial,
    average_area,
    largest_area,
    losses,
    membership_inference,
    roc_area,
    trials_of_demonstrations,
    trials_of_records,
)
from dpfewshot.errors import BackendError, InvalidTask
from dpfewshot.tasks import Task
from dpfewshot.values import Record
from tests.support.notes import FIRST, FORMAT, NOTES, Reader, demonstration, note
from tests.support.streams import evaluated

INSIDE, OUTSIDE = [note(i) for i in range(30)], [note(i) for i in range(30, NOTES)]


def memorises(shown: list[int], _moods: list[int], asked: int) -> float:
    return 0.9 if asked in shown else 0.6


def knows_the_note(_shown: list[int], _moods: list[int], asked: int) -> float:
    """Some notes are gladder than others, whatever the prompt shows."""
    return 0.5 + 0.4 * (asked * 7 % 11) / 11


def area(backend, trials, **settings) -> tuple[float, float | None, float | None]:
    figure = membership_inference(FORMAT, backend, trials, **settings).figure("AUC")
    return figure.value, figure.low, figure.high


def test_a_model_that_memorises_tells_the_record_in_its_prompt() -> None:
    trials = trials_of_records(INSIDE, OUTSIDE)
    value, low, _ = area(Reader(memorises), trials)
    assert value == 1
    assert low > 0.88


def test_a_model_that_looks_at_no_prompt_tells_nobody() -> None:
    trials = trials_of_records(INSIDE, OUTSIDE)
    _, low, high = area(Reader(knows_the_note), trials)
    assert low < 0.5 < high
    assert area(Reader(lambda *_: 0.6), trials)[0] == 0.5


def test_the_whole_record_tells_where_its_label_does_not() -> None:
    """Notes that were shown are expected again; moods are told by nobody."""
    trials = trials_of_records(INSIDE, OUTSIDE)
    backend = Reader(lambda *_: 0.6, remembered=0.5)
    assert area(backend, trials)[0] == 0.5
    assert area(backend, trials, loss="record")[0] == 1
    assert area(Reader(lambda *_: 0.6), trials, loss="record")[0] == 0.5


def test_the_loss_is_the_negative_log_likelihood_by_hand() -> None:
    backend = Reader(memorises, remembered=0.5)
    shown, candidates = demonstration(0), [note(0), note(1), note(1, "Sad")]
    of_labels = [-math.log(0.9), -math.log(0.6), -math.log(0.4)]
    assert losses(FORMAT, backend, shown, candidates, "label") == pytest.approx(of_labels)
    free = dataclasses.replace(FORMAT, labels=None)
    assert losses(free, backend, shown, candidates, "label") == pytest.approx(of_labels)
    expected = [0.5 / NOTES + 0.5, 0.5 / NOTES, 0.5 / NOTES]
    of_records = [loss - math.log(p) for loss, p in zip(of_labels, expected, strict=True)]
    assert losses(FORMAT, backend, shown, candidates, "record") == pytest.approx(of_records, rel=1e-6)


def synthetic(epsilon: float | None) -> list[MembershipTrial]:
    """The demonstration is its first member's own text: not what its ε says."""
    return [
        MembershipTrial(demonstration(i, epsilon=epsilon), (note(i),), (note(59 - i), note(58 - i)))
        for i in range(29)
    ]


def test_synthetic_demonstrations_are_held_against_what_their_privacy_allows() -> None:
    leaking = membership_inference(FORMAT, Reader(memorises), synthetic(epsilon=1.0))
    assert leaking.verdict == "failed"
    assert leaking.figure("AUC").reference == pytest.approx(1 - math.exp(-1) * (0.5 - 1e-5))
    assert membership_inference(FORMAT, Reader(memorises), synthetic(epsilon=8.0)).verdict == "passed"
    assert membership_inference(FORMAT, Reader(knows_the_note), synthetic(epsilon=1.0)).verdict == "passed"
    unprotected = membership_inference(FORMAT, Reader(memorises), synthetic(epsilon=None))
    assert unprotected.verdict == "informative"
    assert unprotected.figure("AUC").reference is None


@pytest.mark.parametrize("loss", ["label", "record"])
def test_a_candidate_that_the_model_cannot_read_is_named_by_its_position_alone(loss: str) -> None:
    class Forgetful(Reader):
        def next_token_logprobs(self, prompts, support=None):
            rows = super().next_token_logprobs(prompts, support)
            unreadable = [FIRST + 40 in prompt for prompt in prompts]
            return np.where(np.array(unreadable)[:, np.newaxis], np.nan, rows)

    trials = trials_of_records(INSIDE[:2], [note(31), note(40)], each=2)
    with pytest.raises(BackendError, match=r"texts\[2\]") as caught:
        membership_inference(FORMAT, Forgetful(memorises), trials, loss=loss)  # type: ignore[arg-type]
    assert "note" not in str(caught.value)


def test_a_finding_is_private_and_shows_no_text() -> None:
    trials = trials_of_records(INSIDE[:3], OUTSIDE)
    finding = membership_inference(FORMAT, Reader(memorises), trials)
    assert finding.confidential
    assert "note0" not in f"{finding}{trials}"
    assert finding.details["non_members"] == 15


def test_every_demonstration_has_candidates_of_its_own_label_and_to_itself() -> None:
    shown = [demonstration(0), demonstration(1), demonstration(2, "Sad")]
    inside = [note(i) for i in range(5)] + [note(i, "Sad") for i in range(5, 8)]
    outside = [note(i, mood) for i, mood in enumerate(["Glad", "Sad", "Glad"], start=40)]
    trials = trials_of_demonstrations(shown, inside, outside)
    assert [len(one.members) for one in trials] == [3, 2, 3]
    assert [len(one.non_members) for one in trials] == [1, 1, 1]
    for one in trials:
        assert {r.label for r in (*one.members, *one.non_members)} == {one.demonstration.label}
    asked = [record for one in trials for record in one.members]
    assert len(set(asked)) == len(asked) == 8
    with pytest.raises(ValueError, match="its own member"):
        trials_of_demonstrations(shown, inside, outside[:1])


def test_non_members_take_turns() -> None:
    trials = trials_of_records(INSIDE[:4], OUTSIDE[:6], each=4)
    assert [one.non_members[0] for one in trials] == [OUTSIDE[0], OUTSIDE[4], OUTSIDE[2], OUTSIDE[0]]
    with pytest.raises(ValueError, match="at least 7"):
        trials_of_records(INSIDE, OUTSIDE[:6], each=7)


def test_what_cannot_be_attacked_is_refused() -> None:
    trials = trials_of_records(INSIDE[:2], OUTSIDE)
    with pytest.raises(ValueError, match="loss must be one of label, record"):
        membership_inference(FORMAT, Reader(memorises), trials, loss="text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least two"):
        membership_inference(FORMAT, Reader(memorises), trials[:1])
    stranger = MembershipTrial(demonstration(0), (note(0, "secret mood"),), (note(1),))
    with pytest.raises(InvalidTask) as caught:
        membership_inference(FORMAT, Reader(memorises), [stranger, stranger])
    assert "secret" not in str(caught.value)


@pytest.mark.model
def test_on_a_real_model_a_record_in_the_prompt_is_the_least_surprising() -> None:
    import dpfewshot as dpf

    task = Task("mood", "Write a note.", "Mood", "Note", ("Glad", "Sad"))
    records = [Record(text, "Glad") for text in ("The sun is out.", "We won the cup.", "My parcel came.")]
    model = dpf.backends.packaged_model_path()
    with dpf.backends.LlamaCpp(model, context_tokens=128, threads=1) as backend:
        trials = trials_of_records(records[:2], records[2:], each=1)
        with evaluated() as count:
            assert membership_inference(task, backend, trials, loss="record").figure("AUC").value == 1
        assert count.tokens < 150, "a token of a record takes one step, not its whole text before it again"
        assert 0 <= membership_inference(task, backend, trials).figure("AUC").value <= 1


def test_a_candidate_too_long_for_the_context_is_named_by_its_place_and_not_by_its_length() -> None:
    backend = Reader(memorises)
    backend.context_tokens = 40  # type: ignore[attr-defined] # what a model in this process has
    long = dataclasses.replace(INSIDE[1], text=" ".join([INSIDE[1].text] * 31))
    trials = [MembershipTrial(demonstration(0), (INSIDE[0], long), tuple(OUTSIDE[:2]))] * 2
    with pytest.raises(BackendError, match=r"texts\[1\]") as caught:
        membership_inference(FORMAT, backend, trials, loss="record")
    assert "31" not in str(caught.value)


# ---- areas under ROC curves ----------------------------------------------------------------------------

scores = st.lists(st.integers(-3, 3).map(float) | st.just(-math.inf), min_size=1, max_size=12)


@given(scores, scores)
def test_the_area_is_the_share_of_won_pairs_and_half_of_the_ties(members, non_members) -> None:
    pairs = [(m > n) + 0.5 * (m == n) for m in members for n in non_members]
    assert roc_area(members, non_members) == pytest.approx(sum(pairs) / len(pairs))
    assert roc_area(non_members, members) == pytest.approx(1 - sum(pairs) / len(pairs))


@pytest.mark.parametrize(("members", "non_members"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0])])
def test_what_has_no_area_is_refused(members, non_members) -> None:
    with pytest.raises(ValueError, match=r"member|number"):
        roc_area(members, non_members)


def areas_of(
    draws: np.random.Generator, shift: float, trials: int, per_trial: tuple[int, int]
) -> list[float]:
    """Each trial's share of won pairs, of normal scores."""
    members = draws.normal(size=(trials, per_trial[0], 1)) + shift
    non_members = draws.normal(size=(trials, 1, per_trial[1]))
    return (members > non_members).mean(axis=(1, 2)).tolist()


def covered(area: float, trials: int, per_trial: tuple[int, int], repetitions: int = 400) -> float:
    """How often the interval holds the area."""
    draws, shift = np.random.default_rng(trials), stats.norm.ppf(area) * math.sqrt(2)
    found = [average_area(areas_of(draws, shift, trials, per_trial)) for _ in range(repetitions)]
    return sum(low <= area <= high for _, low, high in found) / repetitions


@pytest.mark.parametrize("area", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(("trials", "per_trial"), [(10, (8, 8)), (40, (1, 5))])
def test_the_interval_covers_the_area(area: float, trials: int, per_trial: tuple[int, int]) -> None:
    """95 % is meant; 400 repetitions tell it from 89 % and less with a chance of 1e-6."""
    assert covered(area, trials, per_trial) > 0.89


def test_control_pairs_that_are_taken_for_independent_do_not_cover() -> None:
    """With few trials of many pairs: an interval over pairs is far too short."""
    draws = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        areas = areas_of(draws, 0.0, 5, (1, 50))  # one member decides fifty pairs
        _, low, high = average_area(np.repeat(areas, 50).tolist())
        hits += low <= 0.5 <= high
    assert hits / 200 < 0.5


def test_one_trial_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two"):
        average_area([0.7])


def chances_of_naming_the_first(epsilon: float) -> dict[frozenset[str], float]:
    """A release that names one of two candidates, by data set: ε-differentially private, see below."""
    largest = 1 - math.exp(-epsilon) / 2
    return {frozenset(): 0.5, frozenset("ab"): 0.5, frozenset("a"): largest, frozenset("b"): 1 - largest}


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_the_largest_area_is_reached_by_a_private_release_and_never_passed(epsilon: float) -> None:
    chances = chances_of_naming_the_first(epsilon)
    for one, chance in chances.items():
        for other, other_chance in chances.items():
            if len(one ^ other) == 1:
                bound = math.exp(epsilon) * (1 + 1e-12)
                assert chance <= bound * other_chance
                assert 1 - chance <= bound * (1 - other_chance)
    area = chances[frozenset("a")]  # the member scores higher if it is named
    assert area == pytest.approx(largest_area(epsilon, 0.0))
    assert largest_area(0.0, 0.1) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("areas", "low", "high"),
    [
        ([0.2, 0.5, 0.9], 0.033193343929619715, 0.9743870855196538),
        ([0.98, 0.99, 1.0, 0.97], 0.942363181415644, 0.9962226712266721),
        ([1.0] * 20, 0.8315665290169147, 1.0),
        ([0.0] * 6, 0.0, 0.45925812643990044),
        ([0.5] * 9, 0.1729677566728482, 0.8270322433271518),
    ],
)
def test_intervals_of_areas(areas: list[float], low: float, high: float) -> None:
    _, *found = average_area(areas)
    assert found == [pytest.approx(low, rel=1e-11, abs=1e-300), pytest.approx(high, rel=1e-11, abs=1e-300)]
