"""The optimiser for DSPy programs: what it puts into them was released, and one budget pays for all of it."""

import copy
from types import SimpleNamespace
from typing import Any, Self

import pytest

import dpfewshot as dpf
from dpfewshot.dspy import PrivateFewShot
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from tests.releases.test_choosing import BUDGET, Follower, private_records
from tests.releases.test_scoring import TASK
from tests.support.crash_reporter import collected

ROWS = [{"ticket": one.text, "kind": one.label} for one in private_records(400)]


class Program:
    """A program of two predictors, of which one labels tickets."""

    def __init__(self) -> None:
        self.labels = SimpleNamespace(
            signature=SimpleNamespace(fields={"ticket": 0, "kind": 0}), demos=["old"]
        )
        self.answers = SimpleNamespace(signature=SimpleNamespace(fields={"question": 0}), demos=["its"])

    def reset_copy(self) -> Self:
        return copy.deepcopy(self)

    def predictors(self) -> list[Any]:
        return [self.labels, self.answers]


def optimiser(**options: Any) -> PrivateFewShot:
    settings = dpf.Settings(holdout=0.5, prompts_per_draw=20, tokens_per_draw=2)
    given = {"text": "ticket", "label": "kind", "max_tokens": 2, "settings": settings} | options
    return PrivateFewShot(task=TASK, backend=Follower(), budget=BUDGET, **given)


def test_a_program_shows_released_texts_and_one_budget_pays() -> None:
    account, told = dpf.Account.in_memory(BUDGET), []
    student = Program()
    program = optimiser(account=account, on_choice=told.append).compile(student, trainset=ROWS)
    (choice,) = told
    assert program.labels.demos == choice.demonstrations.to_dspy(text="ticket", label="kind")
    assert (program.answers.demos, student.labels.demos) == (["its"], ["old"])
    assert choice.certified
    assert choice.accuracy.value >= choice.baseline.value - 0.2
    assert 1.99 < account.spent.epsilon <= BUDGET.epsilon  # both, since they read different units
    private = {row["ticket"] for row in ROWS}
    assert not private.intersection(one["ticket"] for one in program.labels.demos)
    with pytest.raises(dpf.BudgetExceeded):
        optimiser(account=account).compile(student, trainset=ROWS)


def test_a_search_that_cannot_be_paid_is_refused_before_a_text_is_written() -> None:
    account = dpf.Account.in_memory(BUDGET)
    dpf.choose(TASK, private_records(400), Follower(), [[]], budget=BUDGET, account=account, holdout=0.5)
    before = account.spent
    with pytest.raises(dpf.BudgetExceeded):
        optimiser(account=account).compile(Program(), trainset=ROWS)
    assert account.spent == before


def test_a_search_that_fails_loses_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise dpf.BackendError("the model is gone")

    monkeypatch.setattr("dpfewshot.dspy.search", broken)
    with pytest.warns(UserWarning, match="shown as written: the model is gone"):
        program = optimiser().compile(Program(), trainset=ROWS)
    assert {one["kind"] for one in program.labels.demos} == {"refund", "delivery"}


def test_texts_are_told_before_the_search_which_an_interrupt_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfewshot.dspy.search", interrupted)
    told: list[dpf.Demonstration] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        optimiser(on_demonstration=told.append).compile(Program(), trainset=ROWS)
    assert {one.label for one in told} == {"refund", "delivery"}
    assert not any(row["ticket"] in collected(caught.value) for row in ROWS)


def test_a_callback_that_fails_loses_no_program() -> None:
    def failing(_: object) -> None:
        raise ValueError("swordfish")

    with (
        pytest.warns(UserWarning, match="units measure the accuracy"),
        pytest.warns(UserWarning, match="^on_choice failed with ValueError$") as caught,
    ):
        program = optimiser(on_choice=failing).compile(Program(), trainset=ROWS)
    assert program.labels.demos != ["old"]
    assert caught[-1].filename == __file__


@pytest.mark.parametrize(
    ("options", "rows", "says"),
    [
        ({"text": "body"}, ROWS, "no predictor of the program has the fields 'body' and 'kind'"),
        ({"settings": dpf.Settings()}, ROWS, "settings need a holdout"),
        ({}, [{"kind": "refund"}], "has no"),
        ({}, [3], "failed with TypeError"),
        ({}, [{"ticket": "swordfish", "kind": "other"}], "label"),
    ],
)
def test_what_cannot_be_says_so_and_quotes_nothing(options: dict[str, Any], rows: Any, says: str) -> None:
    with pytest.raises(dpf.DPFewShotError, match=says) as caught:
        optimiser(**options).compile(Program(), trainset=rows)
    assert "swordfish" not in collected(caught.value)


@pytest.mark.soak
@pytest.mark.model
def test_a_real_program_and_a_local_model() -> None:
    dspy = pytest.importorskip("dspy", reason="dspy is not installed: pip install dspy")
    model = dpf.backends.LlamaCpp(dpf.backends.packaged_model_path(), context_tokens=1024)
    trainset = [
        dspy.Example(ticket=one.text, kind=one.label).with_inputs("ticket") for one in support_tickets()
    ]
    told: list[Any] = []
    made = PrivateFewShot(
        task=SUPPORT_TICKETS,
        backend=model,
        budget=dpf.PrivacyBudget(epsilon=4, delta=1e-5),
        text="ticket",
        label="kind",
        max_tokens=12,
        rounds=1,
        scored_units=20,
        settings=dpf.Settings(holdout=0.2, prompt_token_limit=2_000, record_token_cap=40),
        on_choice=told.append,
    ).compile(dspy.ChainOfThought("ticket -> kind"), trainset=trainset)
    (predictor,) = made.predictors()
    assert predictor.demos == told[0].demonstrations.to_dspy(text="ticket", label="kind")
    messages = dspy.ChatAdapter().format(predictor.signature, predictor.demos, {"ticket": "where is it?"})
    assert all(one["ticket"] in str(messages) for one in predictor.demos)
    assert not {one.text for one in support_tickets()}.intersection(str(one) for one in messages)
