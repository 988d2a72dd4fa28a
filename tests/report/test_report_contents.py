"""Which bound a report states, what of an account it shows, and which files it refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpfewshot.account.amounts import Amount
from dpfewshot.account.draws import columns, granted
from dpfewshot.account.history import HistoryEvent, chained
from dpfewshot.account.verification import Snapshot
from dpfewshot.certificates import Certificate
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import InvalidReport, LedgerError
from dpfewshot.releases.candidates import Choice
from dpfewshot.report import Sources, read_choice, read_findings, select
from dpfewshot.report.spending import spending_of
from dpfewshot.values import PrivacySpend
from tests.support.accounts import DRAWS
from tests.support.factory import calibration, demonstration
from tests.support.report_samples import (
    account,
    choice,
    demonstrations,
    findings,
    rendered,
    sources,
)

Read = Callable[[Callable[[Path], Any], object], Any]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return sources(tmp_path_factory.mktemp("samples"))


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """What a reader makes of a document."""

    def call(reader: Callable[[Path], Any], document: object) -> Any:
        path = tmp_path / "given.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return reader(path)

    return call


def promised(given: Sources, *, confidential: bool = False) -> tuple[float, float, str] | None:
    promise = select(given, confidential=confidential).promise
    return None if promise is None else (promise.epsilon, promise.delta, promise.relation)


def test_the_account_comes_first_since_it_covers_all(given: Sources) -> None:
    assert promised(given) == (2.0, pytest.approx(1e-6 / 3), "zero-out")
    assert "account of tickets" in select(given, confidential=False).promise.covers


@pytest.mark.slow
def test_demonstrations_of_another_account_are_noticed(given: Sources) -> None:
    contents = select(given, confidential=True)
    assert (contents.unpaid, contents.unprotected) == (0, 1)
    [one, *_] = given.demonstrations
    for other in (
        dataclasses.replace(one, spent=PrivacySpend(1.0, 1.7e-7)),
        dataclasses.replace(one, spent=PrivacySpend(0.5, 0.0)),  # of the plan that was given back
        dataclasses.replace(one, relation="add-remove"),
        dataclasses.replace(one, text="Mrs Hollis, 12 Elm St"),
        dataclasses.replace(one, label="Complaint"),
    ):
        more = dataclasses.replace(given, demonstrations=Demonstrations([one, other]))
        assert select(more, confidential=False).unpaid == 1
    forged = dataclasses.replace(one, text="Mrs Hollis, 12 Elm St", spent=PrivacySpend(0.0, 0.0))
    free = dataclasses.replace(forged, certificate=None)
    forged = dataclasses.replace(forged, certificate=Certificate("ab" * 32, None, "0.1.0"))
    costless = dataclasses.replace(given, demonstrations=Demonstrations([forged, free]))
    contents = select(costless, confidential=True)
    assert (contents.unpaid, contents.free) == (1, 1)
    assert select(Sources(demonstrations=costless.demonstrations), confidential=True).free == 0


def test_without_an_account_the_sum_over_the_lines_and_it_says_that_it_is_loose() -> None:
    given = Sources(demonstrations=demonstrations())
    epsilon, delta, relation = promised(given)
    assert (epsilon, delta, relation) == (pytest.approx(6.0), pytest.approx(1e-6), "zero-out")
    assert epsilon >= 6.0
    assert select(given, confidential=False).loose
    free = Demonstrations([demonstration("a", "b", spent=PrivacySpend(0.0, 0.0))] * 2)
    assert not select(Sources(demonstrations=free), confidential=False).loose
    assert promised(given, confidential=True) == promised(given)  # one without a guarantee takes no other's


def test_lines_of_one_run_have_the_bound_of_their_plan() -> None:
    whose = Certificate("ab" * 32, None, "0.1.0", run="23" * 16)
    of_run = [dataclasses.replace(one, certificate=whose) for one in demonstrations() if one.certified]
    bare = demonstrations()[-1]
    given = Sources(demonstrations=Demonstrations([*of_run, bare]))
    assert promised(given) == (1.0, pytest.approx(1e-6 / 6), "zero-out")
    contents = select(given, confidential=False)
    assert (len(contents.demonstrations), contents.left_out["demonstrations"], contents.loose) == (
        6,
        1,
        False,
    )
    other = dataclasses.replace(of_run[0], certificate=dataclasses.replace(whose, run="45" * 16))
    assert promised(Sources(demonstrations=Demonstrations([*of_run, other])))[0] == 2.0
    assert promised(Sources(demonstrations=Demonstrations([bare]))) is None


def test_a_choice_adds_to_its_demonstrations_unless_an_account_counts_both(given: Sources) -> None:
    made = Choice.from_dict(choice())
    alone = select(Sources(choice=made), confidential=False)
    assert (alone.promise.epsilon, alone.promise.relation) == (3.2, "zero-out")  # three lines of 1, and 0.2
    assert "the choice, and all demonstrations" in alone.promise.covers
    assert list(alone.demonstrations) == list(made.demonstrations)
    assert promised(given)[0] == 2.0
    elsewhere = Demonstrations([demonstration("text", "label", spent=PrivacySpend(0.5, 0.0))])
    both = Sources(choice=made, demonstrations=elsewhere)
    assert promised(both)[0] == pytest.approx(3.7)  # its accuracy depends on what it chose
    assert "Of other demonstrations than those below: with these" in rendered(both)
    assert promised(Sources(choice=made, demonstrations=Demonstrations()))[0] == 3.2
    free = dataclasses.replace(made, candidate=type(made.candidate)())
    assert promised(Sources(choice=free))[:2] == (0.2, 0.0)
    for difference in ({"relation": "add-remove"}, {"unit": "customer"}):
        assert promised(Sources(choice=dataclasses.replace(made, **difference))) is None


def test_the_calibration_of_a_choice_adds_too() -> None:
    made = Choice.from_dict(choice())

    def bound(**changes: object) -> tuple[float, float, str] | None:
        candidate = dataclasses.replace(made.candidate, **changes)
        return promised(Sources(choice=dataclasses.replace(made, candidate=candidate)))

    def calibrated(**changes: object) -> tuple[float, float, str] | None:
        return bound(calibration=calibration(**changes))

    assert calibrated() == (pytest.approx(3.7), pytest.approx(1.5e-6), "zero-out")
    assert calibrated(relation="add-remove") is None
    assert calibrated(unit="customer") is None
    assert calibrated(certified=False, spent=None) is None
    raw = [dataclasses.replace(one, certified=False, spent=None) for one in made.demonstrations]
    assert bound() is not None
    assert bound(demonstrations=raw) is None  # its accuracies depend on the texts that were chosen


def test_a_choice_or_a_finding_without_a_word_is_confidential(read: Read) -> None:
    seeded = Sources(choice=dataclasses.replace(Choice.from_dict(choice()), certified=False, spent=None))
    for confidential in (False, True):
        assert select(seeded, confidential=confidential).left_out["choices"] == (not confidential)
        text = rendered(seeded, confidential=confidential)
        assert ("no guarantee)." in text) == confidential
        assert ("1 choice without a guarantee." in text) is not confidential
    document = findings()
    for finding in document["findings"]:
        del finding["confidential"]
    assert all(finding.confidential for finding in read(read_findings, document))


def test_no_bound_for_two_relations_or_none() -> None:
    [one, other, *_] = demonstrations()
    mixed = Demonstrations([one, dataclasses.replace(other, relation="add-remove")])
    assert promised(Sources(demonstrations=mixed)) is None
    bare = demonstration("text", "label", spent=None)
    assert promised(Sources(demonstrations=Demonstrations([bare])), confidential=True) is None
    many = Demonstrations([dataclasses.replace(one, spent=PrivacySpend(1.0, 0.3))] * 5)
    assert promised(Sources(demonstrations=many))[1] == 1.0


def test_released_spending_has_plans_that_count_in_their_order(tmp_path: Path) -> None:
    spent, snapshot = (made := account(tmp_path)).spent, made.snapshot()
    released, private = (spending_of(snapshot, confidential=private) for private in (False, True))
    assert [plan.number for plan in released.plans] == [1, 2, 3, 4, 5, 6]
    assert (len(private.plans), private.given_back, released.given_back) == (7, 1, 0)
    assert [budget.epsilon for budget in released.budgets] == [6.0, 8.0]
    assert released.spent == private.spent == spent
    snapshot.entries[0]["epsilon"] -= 1  # somebody changed the account
    with pytest.raises(LedgerError, match="ledger verify"):
        spending_of(snapshot, confidential=False)


def long_book(plans: int) -> Snapshot:
    """An account's snapshot as a ledger would keep it, without a database."""
    words = {"relation": "zero-out", "unit": None, "parallel": True}
    history, entries, before = [], [], "0" * 64

    def act(name: str, units: Amount | None = None, entry: int | None = None, details: str = "{}") -> None:
        nonlocal before
        amounts = units or (None, None)
        at = f"2026-01-01T00:00:00.{len(history):06}+00:00"
        epsilon, delta = amounts
        amount = {"entry": entry, "epsilon": epsilon, "delta": delta}
        event = HistoryEvent(act=name, at=at, actor="me", **amount, details=details, package_version="0.1.0")
        row = chained(event, len(history) + 1, before)
        history.append(row)
        before = row["hash"]

    act("create", Amount(10**15, 10**15), details=json.dumps({"dataset": "tickets", **words}))
    for number in range(1, plans + 1):
        act("reserve", Amount(10**10, 1), number, json.dumps(granted(DRAWS)))
        act("charge", None, number)
        entry = {
            "id": number,
            "scope": None,
            "epsilon": 10**10,
            "delta": 1,
            "state": "charged",
            "renyi": None,
        }
        entries.append({**entry, **columns(DRAWS)})
        if number == plans // 2:
            act("change-budget", Amount(10**15 + 1, 10**15))
    row = {"dataset": "tickets", **words, "epsilon": 10**15 + 1, "delta": 10**15, "partition": None}
    return Snapshot(row, entries, history)


@pytest.mark.slow
def test_of_thousands_of_plans_the_last_are_shown() -> None:
    snapshot = long_book(1_000)
    spending = spending_of(snapshot, confidential=False)
    assert spending.spent.epsilon == pytest.approx(10.0)
    text = rendered(Sources(snapshot=snapshot), confidential=True)
    assert "The last 50 of 1,000 plans." in text
    assert len(text) < 100_000


@pytest.mark.parametrize(
    ("reader", "text", "says"),
    [
        (read_choice, "[]", "what dpfewshot choose --json prints"),
        (read_choice, "{}", "the choice has no 'index'"),
        (read_findings, "{}", "audit --json"),
        (read_findings, '{"findings": [{"kind": "leak"}]}', "audit --json"),
        (read_findings, json.dumps({"findings": [findings()["findings"][0] | {"title": 3}]}), "audit --json"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, reader, text, says) -> None:
    path = tmp_path / "given.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidReport, match=r"given\.json") as raised:
        reader(path)
    assert says in str(raised.value)
    with pytest.raises(InvalidReport, match="cannot be read"):
        reader(tmp_path / "nothing.json")
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidReport, match="UTF-8"):
        reader(path)


def test_a_server_that_read_the_records_is_no_text_writer() -> None:
    certificate = Certificate(plan="0" * 64, unit=None, version="0.1.0")
    for model, told in (("claimed:qwen", []), (None, []), ("writer:qwen", ["writer:qwen"])):
        one = dataclasses.replace(
            demonstration("a", "b"), certificate=dataclasses.replace(certificate, model=model)
        )
        contents = select(Sources(demonstrations=Demonstrations([one])), confidential=True)
        assert contents.text_writers == told
