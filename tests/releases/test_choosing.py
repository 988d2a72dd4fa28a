"""`dpfewshot.choose`: what it chooses, what it pays, and when nothing is paid."""

import random
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.certificates import Certificate
from dpfewshot.planning.population import MOST_UNITS
from dpfewshot.records.units import each_a_unit
from dpfewshot.releases import choosing
from dpfewshot.releases.choosing import parts_of
from dpfewshot.values import PrivacySpend
from tests.releases.test_scoring import FREE, SECRET, TASK, Shop
from tests.support.factory import calibration, demonstration

BUDGET = dpf.PrivacyBudget(2.0, 1e-6)
HELPFUL = [demonstration("money", "refund", spent=PrivacySpend(1.0, 0.0))]
MISLEADING = [demonstration("parcel", "refund")]


class Follower(Shop):
    """Right after a helpful demonstration, wrong after a misleading one, and half right after none."""

    def answer(self, prompt: list[int]) -> list[float]:
        usual = list(super().answer(prompt))
        shown = prompt[: max(i for i, token in enumerate(prompt) if token in (6, 8))]
        text = prompt[len(shown) :]
        if text[-1] < 2 or (4 in text and self.broken is not None):
            return usual
        refund, delivery = (0.7, 0.1) if 2 in text else (0.1, 0.7)
        if 3 in shown:
            refund, delivery = delivery, refund
        elif 2 not in shown:
            refund, delivery = 0.7, 0.1
        return [refund, delivery, *usual[2:]]


def private_records(count: int = 2000) -> list[dpf.Record]:
    return [
        dpf.Record(f"money {i}", "refund") if i % 2 else dpf.Record(f"parcel {i}", "delivery")
        for i in range(count)
    ]


def choose(candidates: list[Any], backend: Any = None, records: Any = None, **options: Any) -> dpf.Choice:
    return dpf.choose(
        options.pop("task", TASK),
        private_records() if records is None else records,
        Follower() if backend is None else backend,
        [dpf.Candidate(each, calibrated=False) for each in candidates],
        **({"budget": BUDGET, "holdout": 0.5} | options),
    )


def test_the_best_prompt_is_chosen_and_measured_beside_none() -> None:
    choice = choose([[], MISLEADING, HELPFUL])
    assert choice.index == 2
    assert list(choice.demonstrations) == HELPFUL
    assert choice.accuracy.low > 0.9
    assert abs(choice.baseline.value - 0.5) < 0.2  # a 95 % interval would miss in one run of 20
    assert choice.spent == PrivacySpend(2.0, 0.0)
    assert choice.relation == "zero-out"
    assert (choice.certified, choice.proxy, choice.total) == (True, False, None)
    assert choice.statement.startswith("with these demonstrations ")
    assert choice.statement.endswith("(ε = 2 for the choice, δ = 0, neighbours zero-out)")


def test_none_at_all_may_be_best_and_is_then_measured_once() -> None:
    choice = choose([MISLEADING, []])
    assert choice.index == 1
    assert choice.accuracy == choice.baseline
    assert "no demonstrations are chosen" in choice.statement


def test_an_accuracy_that_tells_little_is_foretold_and_costs_nothing() -> None:
    account = dpf.Account.in_memory(BUDGET)

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with (
        pytest.warns(UserWarning, match=r"about 30 units measure .* about ± \d\d points"),
        pytest.raises(KeyboardInterrupt),
    ):
        choose([[], HELPFUL], records=private_records(120), account=account, on_progress=interrupt)
    assert account.spent.epsilon == 0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        choose([[], HELPFUL])  # 500 measure
    assert not told


@pytest.mark.parametrize(
    ("units", "rate", "points"), [(100, Fraction(1, 2), 12), (100, Fraction(1), 10), (50, Fraction(5), 14)]
)
def test_the_foretold_width_is_that_of_the_documentation(units: int, rate: Fraction, points: int) -> None:
    """docs/how-to/choose.md: ± 12.1 and ± 10.4; and the binomial's 1.96·√(.21/50) = 12.7 and the noise."""
    with pytest.warns(UserWarning, match=f"about {units} units .* about ± {points} points"):
        choosing._warn_if_rough(units, rate)  # noqa: SLF001


def test_the_baseline_is_measured_without_being_a_candidate() -> None:
    choice = choose([HELPFUL])
    assert choice.index == 0
    assert choice.accuracy.low > choice.baseline.high


@pytest.mark.parametrize("options", [{"score": "likelihood"}, {"balanced": True}, {"scored_units": 400}])
def test_other_scores_choose_too(options: dict[str, Any]) -> None:
    assert choose([[], MISLEADING, HELPFUL], **options).index == 2


def test_balance_weighs_labels_by_public_numbers() -> None:
    records = [dpf.Record("money", "refund")] * 1800 + [dpf.Record("parcel", "delivery")] * 200
    plain, balanced = (
        choose([[]], records=records, balanced=balanced, holdout=0, scored_units=2000)
        for balanced in (False, True)
    )
    assert plain.accuracy.low > 0.8
    assert abs(balanced.accuracy.value - 0.5) < 0.2
    with pytest.raises(dpf.InvalidPlan, match="public number of each label"):
        choose([[]], population=2000, balanced=True)


@pytest.mark.parametrize(
    ("population", "says"),
    [
        ({"refund": -100, "delivery": 300}, "'refund' .* at least 1, not -100"),
        ({"refund": 0, "delivery": 300}, "'refund' .* at least 1, not 0"),
        ({"refund": 1.5, "delivery": 300}, "'refund' .* whole number"),
        pytest.param({"refund": 10**400, "delivery": 300}, "'refund' .* at most", id="a huge one"),
        ({"refund": 300}, "no number for the label 'delivery'"),
        ({"refund": 300, "delivery": 300, "parcel": 300}, "'parcel', which is not a label"),
        pytest.param(10**400, "population must be at most", id="huge"),
        pytest.param(2**31, "population must be at most", id="more than the sampler draws from"),
        (0, "population must be a whole number"),
    ],
)
def test_a_population_that_is_none_of_the_task_is_refused(population: Any, says: str) -> None:
    """A weight above 1, or below 0, would release more than is stated."""
    account = dpf.Account.in_memory(BUDGET)
    for balanced in (False, True):
        with pytest.raises(dpf.InvalidPlan, match=says):
            choose(
                [[]], records=private_records(20), population=population, balanced=balanced, account=account
            )
    with pytest.raises(dpf.InvalidPlan, match="must be one whole number"):
        choose([[]], Shop(), task=FREE, population={"refund": 300})
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_the_largest_population_is_one() -> None:
    population = {"refund": MOST_UNITS, "delivery": MOST_UNITS}
    choice = choose([[]], records=private_records(20), population=population, scored_units=1)
    assert choice.relation == "add-remove"


def test_several_models_are_a_proxy() -> None:
    choice = choose([[], HELPFUL], [Follower(), Follower()])
    assert choice.index == 1
    assert choice.proxy
    assert "0.14 on TREC" in choice.statement


def test_free_labels_are_extracted() -> None:
    records = [dpf.Record("money", "refund")] * 400
    choice = choose([[]], Shop(), records, task=FREE, holdout=0)
    assert choice.accuracy.low > 0.9


def test_units_of_several_records_count_once() -> None:
    records = [dpf.Record(f"money {i}", "refund", f"customer {i // 4}") for i in range(2000)]
    choice = choose([[], HELPFUL], records=records, holdout=0, unit="customer")
    assert choice.relation == "zero-out"
    assert choice.accuracy.low > 0.9


@pytest.mark.parametrize("releases", [2, 4])
def test_a_unit_serves_one_release_at_most(releases: int) -> None:
    parts = parts_of(each_a_unit(private_records()), {}, Fraction(1, 2), releases, None)
    texts = [{record.text for record in part.records} for part in parts]
    assert not any(one & other for one, other in combinations(texts, 2))
    share = 1 / 2 / releases
    for part in texts:
        assert abs(len(part) - 2000 * share) < 6.2 * (2000 * share * (1 - share)) ** 0.5  # p < 1e-9


def test_in_all_is_said_only_of_what_one_account_can_have_paid_for() -> None:
    made = choose([[], HELPFUL], account=dpf.Account.in_memory(BUDGET))
    assert made.covers_all
    assert "ε = 2 in all on this account" in made.statement
    dear = demonstration("money", "refund", spent=PrivacySpend(3.0, 0.0))
    customers = Certificate("ab" * 32, "customer", "0.1.0")
    for elsewhere in (
        *(dear, demonstration("money", "refund", relation="add-remove")),
        demonstration("money", "refund", certificate=customers),
    ):
        one = replace(made, candidate=dpf.Candidate([elsewhere]))
        assert "ε = 2 for the choice" in one.statement
    calibrated = dpf.Candidate(HELPFUL, calibration=calibration(spent=PrivacySpend(3.0, 0.0)))
    assert "ε = 2 for the choice" in replace(made, candidate=calibrated).statement
    free = demonstration("money", "refund", relation="add-remove", spent=PrivacySpend(0.0, 0.0))
    assert replace(made, candidate=dpf.Candidate([free])).covers_all


def test_demonstrations_without_a_guarantee_are_called_so() -> None:
    choice = choose([[demonstration("money", "refund", spent=None)]])
    assert choice.statement.endswith("; what was chosen has no guarantee of its own")


def test_a_seeded_choice_has_no_guarantee() -> None:
    choice = choose([[], HELPFUL], random_source=random.Random(1).randbytes)
    assert (choice.certified, choice.spent) == (False, None)
    assert "no guarantee" in choice.statement


# ---- paying ----------------------------------------------------------------------------------------------


def test_a_ledger_pays_before_anything_is_released(tmp_path: Any) -> None:
    ledger = f"sqlite:///{tmp_path}/budget.db"
    account = {"account": dpf.open_account(ledger, "tickets", create=BUDGET)}
    first = choose([[], HELPFUL], **account)
    assert first.total == first.spent == PrivacySpend(2.0, 0.0)
    assert "ε = 2 in all on this account" in first.statement
    backend = Follower()
    with pytest.raises(dpf.BudgetExceeded):
        choose([[], HELPFUL], backend, **account, budget=BUDGET)
    assert not any("money 1" in text for text in backend.texts)  # nothing was scored
    assert dpf.open_account(ledger, "tickets").spent == PrivacySpend(2.0, 0.0)


class Dying(Follower):
    """Answers a hundred prompts."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def answer(self, prompt: list[int]) -> list[float]:
        if len(self.texts) > 100:
            raise self.error
        return super().answer(prompt)


@pytest.mark.parametrize("error", [dpf.BackendError("the server is gone"), ConnectionResetError("is gone")])
@pytest.mark.parametrize("others", [[], [Follower()]])
def test_a_model_that_dies_while_scoring_costs_nothing(error: Exception, others: list[Any]) -> None:
    """Also one whose own errors look like those of a record: the choice would be made of noise."""
    account = dpf.Account.in_memory(BUDGET)
    with pytest.raises(dpf.BackendError, match=r"gone|ConnectionResetError"):
        choose([[], HELPFUL], [*others, Dying(error)], account=account)
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_whoever_interrupts_the_scoring_pays_nothing() -> None:
    class Interrupted(Follower):
        def next_token_logprobs(self, *arguments: Any, **named: Any) -> Any:
            if account.spent.epsilon:  # reserved: the prompts are now of records
                raise KeyboardInterrupt
            return super().next_token_logprobs(*arguments, **named)

    account = dpf.Account.in_memory(BUDGET)
    with pytest.raises(KeyboardInterrupt):
        choose([[], HELPFUL], Interrupted(), account=account)
    assert account.spent == PrivacySpend(0.0, 0.0)


class Turning(Follower):
    """Finds itself not batch-invariant as it answers."""

    def answer(self, prompt: list[int]) -> list[float]:
        self.batch_invariant = False
        return super().answer(prompt)


@pytest.mark.parametrize(
    ("turning", "options"),
    [(Turning, {}), (lambda: [Follower(), Turning()], {}), (Turning, {"task": FREE})],
)
def test_a_backend_that_turns_out_batch_variant_is_not_certified(
    turning: Callable[[], Any], options: dict[str, Any]
) -> None:
    account = dpf.Account.in_memory(BUDGET)
    with pytest.raises(dpf.BackendNotBatchInvariant):
        choose([[]], turning(), account=account, **options)
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_a_ledger_that_is_gone_after_the_charge_loses_no_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, draw = tmp_path / "budget.db", Account.draw

    def last_draw(*arguments: Any) -> int:
        drawn = draw(*arguments)
        file.rename(tmp_path / "away.db")
        file.write_text("not a ledger" * 500)
        return drawn

    monkeypatch.setattr(Account, "draw", last_draw)
    choice = choose([[], HELPFUL], account=dpf.open_account(f"sqlite:///{file}", "tickets", create=BUDGET))
    assert choice.certified
    assert choice.total is None
    assert "ε = 2 for the choice" in choice.statement


def test_records_without_answers_say_nothing() -> None:
    records = [*private_records(600), *[dpf.Record(f"nothing {SECRET} {i}", "refund") for i in range(600)]]
    choice = choose([[], HELPFUL], Follower(broken=ValueError(SECRET)), records, holdout=0)
    assert choice.index == 1
    assert choice.accuracy.low > 0.9
    assert SECRET not in repr(choice)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"candidates": []}, "0 candidates"),
        ({"candidates": None}, "candidates must be a list of prompts"),
        ({"budget": dpf.NO_PRIVACY}, "budget must be a PrivacyBudget, not NoPrivacy"),
        ({"budget": None, "account": None}, "budget must be a PrivacyBudget, not NoneType"),
        ({"holdout": ""}, "holdout must be a number"),
        ({"holdout": []}, "holdout must be a number"),
        ({"holdout": False}, "holdout must be a number"),
        ({"candidates": ["money"]}, "sequence of demonstrations"),
        ({"candidates": Follower(), "backend": [[]]}, "candidates must be .* not Follower"),
        ({"backend": [[]]}, "LogprobBackend.* not list"),
        ({"candidates": [["money"]]}, "Demonstration objects"),
        ({"scored_units": 0}, "scored_units"),
        ({"score": "luck"}, "luck"),
        ({"holdout": 1.0}, "holdout"),
        ({"backend": []}, "no backend"),
        ({"task": FREE, "balanced": True}, "labels of its own"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_spent(options: dict[str, Any], says: str) -> None:
    account = dpf.Account.in_memory(BUDGET)
    arguments = {"task": TASK, "records": private_records(20), "backend": Follower(), "candidates": [[]]}
    with pytest.raises(dpf.InvalidPlan, match=says):
        dpf.choose(**({**arguments, "budget": BUDGET, "account": account} | options))
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_errors_tell_nothing_of_records() -> None:
    for records in ([dpf.Record(SECRET, SECRET)], [{"text": SECRET}]):
        with pytest.raises(dpf.DPFewShotError) as caught:
            choose([[]], records=records)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
