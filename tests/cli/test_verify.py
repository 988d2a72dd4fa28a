"""`dpfewshot verify`: files of demonstrations against the ledger that paid for them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.amounts import Amount
from dpfewshot.account.history import plan_facts
from dpfewshot.certificates import Certificate, line_hash, plan_hash
from tests.support.accounts import DRAWS
from tests.support.commands import Run
from tests.support.factory import demonstration, synthesizer
from tests.support.ledgers import tamper
from tests.support.resuming import fails_at, make
from tests.support.scripts import Hooked, tickets

__all__ = ["make"]

Made = tuple[int, dict[str, Any]]
Verify = Callable[..., Made]


@pytest.fixture
def verify(tmp_path: Path, command: Run) -> Verify:
    def call(file: str = "demos.jsonl", ledger: str = "budget.db") -> Made:
        words = ("verify", tmp_path / file, "--ledger", f"sqlite:///{tmp_path / ledger}")
        status, out, _ = command(*words, "--json")
        return status, json.loads(out) if out else {}

    return call


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two demonstrations of each label in demos.jsonl, and the ledger that paid for them."""
    folder = tmp_path_factory.mktemp("paid")
    generated(folder)
    return folder


@pytest.fixture
def demos(paid: Path, tmp_path: Path) -> dpf.Demonstrations:
    """A copy of them."""
    shutil.copytree(paid, tmp_path, dirs_exist_ok=True)
    return dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl")


def generated(folder: Path, ledger: str = "budget.db", **options: Any) -> dpf.Demonstrations:
    settings = {"ledger": f"sqlite:///{folder / ledger}"}
    with synthesizer(shots_per_label=2, **(settings | options)) as one:
        made = one.generate_all()
    made.to_jsonl(folder / "demos.jsonl")
    return made


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first line of demos.jsonl."""
    file = folder / "demos.jsonl"
    first, *rest = file.read_text().splitlines()
    line = json.loads(first)
    change(line)
    file.write_text("\n".join([json.dumps(line), *rest]) + "\n")


def problems(told: Mapping[str, Any]) -> str:
    return "; ".join(problem for part in told["entries"] + told["accounts"] for problem in part["problems"])


def test_what_a_ledger_paid_for_is_verified(
    verify: Verify, demos: dpf.Demonstrations, tmp_path: Path, command: Run
) -> None:
    status, told = verify()
    assert (status, told["verified"], told["demonstrations"], problems(told)) == (0, True, 4, "")
    entries = [(one["entry"], one["demonstrations"], one["state"]) for one in told["entries"]]
    assert entries == [(1, 2, "settled"), (2, 2, "settled")]
    account = told["accounts"][0]  # the labels compose in parallel, and certificates name their run
    assert account["together"]["epsilon"] == demos[0].spent.epsilon  # type: ignore[union-attr]
    again = dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl")
    assert again.spent.epsilon == account["together"]["epsilon"]  # type: ignore[union-attr]
    url = f"sqlite:///{tmp_path}/budget.db"
    assert account["chain_tip"] == dpf.open_account(url, "tickets").chain_tip
    status, shown, _ = command("verify", tmp_path / "demos.jsonl", "--ledger", url)
    assert status == 0
    assert "demos.jsonl: verified, 4 demonstrations" in shown
    assert "compare the chain tip" in shown
    assert (shown.count("\n"), "entry 1" in shown) == (3, False)
    shown = command("verify", tmp_path / "demos.jsonl", "--ledger", url, "--details")[1]
    assert "entry 1 of tickets: 2 demonstrations of " in shown
    assert "prompt: sha256:" in shown
    assert "model: unknown" in shown  # a scripted model has no file


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "less epsilon": (lambda line: line.update(epsilon=0.5), "less than the entry's"),
    "more epsilon": (lambda line: line.update(epsilon=9.0), "more than the entry's"),
    "less delta": (lambda line: line.update(delta=1e-9), "less than the entry's"),
    "relation": (lambda line: line.update(relation="add-remove"), "relation 'add-remove', the account"),
    "mechanism": (lambda line: line.update(mechanism="other"), "mechanism 'other', the plan 'gaussian'"),
    "baseline": (lambda line: line.update(certified=False, epsilon=None, delta=None), "states no epsilon"),
    "tokens": (lambda line: line.update(tokens=1000), "but the entry paid for"),
    "unit": (lambda line: line["certificate"].update(unit="customer"), "unit 'customer', the account None"),
    "plan": (lambda line: line["certificate"].update(plan="ab" * 32), "has the plan abababababab"),
    "reservation": (lambda line: line["certificate"].update(reservation="ab" * 16), "no reservation abab"),
    "text": (lambda line: line.update(text="Mrs Hollis, 12 Elm St"), "line 1 is not what the entry released"),
    "fields": (lambda line: line.update(fields={"Ticket": line["text"]}), "line 1 is not what"),
    "version": (lambda line: line["certificate"].update(version="9.9"), "line 1 is not what"),
    "model": (lambda line: line["certificate"].update(model="sha256:ab"), "line 1 is not what"),
    "prompt": (lambda line: line["certificate"].update(prompt="sha256:ab"), "line 1 is not what"),
    "dataset": (lambda line: line["certificate"].update(dataset="other"), "no account 'other'"),
}


@pytest.mark.usefixtures("demos")
@pytest.mark.parametrize("change", CHANGES)
def test_a_line_that_says_otherwise_is_not_verified(verify: Verify, tmp_path: Path, change: str) -> None:
    apply, problem = CHANGES[change]
    rewritten(tmp_path, apply)
    status, told = verify()
    assert (status, told["verified"]) == (1, False)
    assert problem in problems(told)


@pytest.mark.usefixtures("demos")
@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda line: json.dumps(json.loads(line) | {"text": "invented", "tokens": 0}), 1),
        (lambda line: json.dumps(json.loads(line) | {"text": "invented", "tokens": -1}), 2),
        (lambda line: json.dumps(json.loads(line) | {"text": "invented", "tokens": True}), 2),
        (lambda line: line.replace('"text"', '"checkpoint": 1, "text"'), 2),
        (lambda line: line.replace('"text"', '"epsilon": 0.01, "text"'), 2),
    ],
)
def test_no_line_hides_from_verify(
    verify: Verify, tmp_path: Path, change: Callable[[str], str], status: int
) -> None:
    file = tmp_path / "demos.jsonl"
    whole = file.read_text()
    file.write_text(whole + change(whole.splitlines()[0]) + "\n")
    assert verify()[0] == status


@pytest.mark.parametrize("change", [{"text": "late\ud83d"}, {"fields": {}}])
def test_no_two_lines_of_a_file_have_one_hash(tmp_path: Path, change: dict[str, Any]) -> None:
    """A lone surrogate is hashed as the "?" that files have in its place, and no hash covers empty fields."""
    released = demonstration("late?").as_line()
    assert line_hash(released | {"text": "late\ud83d"}) == line_hash(released)
    (tmp_path / "demos.jsonl").write_text(json.dumps(released | change) + "\n")
    with pytest.raises(dpf.InvalidRecords, match="line 1: is not a demonstration"):
        dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl")


def test_a_release_that_makes_no_text_pays_for_none(
    verify: Verify, demos: dpf.Demonstrations, tmp_path: Path
) -> None:
    with dpf.BudgetLedger.open(f"sqlite:///{tmp_path / 'budget.db'}") as ledger:
        ledger.account("tickets").change_budget(dpf.PrivacyBudget(8, 1e-4))
        account = ledger.account("tickets")
        candidates = ["refund", "delivery"]
        dpf.release_labels(tickets(), count=1, epsilon=0.01, candidates=candidates, account=account)
        snapshot = account.snapshot()
    row = snapshot.entries[-1]
    reserved = [each for each in snapshot.history if (each["act"], each["entry"]) == ("reserve", row["id"])]
    details, cost = json.loads(reserved[0]["details"]), Amount(row["epsilon"], row["delta"])
    certificate = demos[0].certificate
    assert certificate is not None
    paid_for = {"reservation": details["reservation"], "plan": plan_hash(*cost, plan_facts(details))}
    forged = {"mechanism": details["mechanism"], "certificate": replace(certificate, **paid_for)}
    made = replace(demos[0], spent=cost.as_spend(), **forged)
    dpf.Demonstrations([made]).to_jsonl(tmp_path / "demos.jsonl")
    status, told = verify()
    assert status == 1
    assert "paid for no demonstration" in json.dumps(told)


def test_what_no_ledger_paid_for_is_not_verified(
    verify: Verify, demos: dpf.Demonstrations, tmp_path: Path
) -> None:
    old = replace(demos[0], certificate=None)
    unpaid = synthesizer().generate("refund")
    assert unpaid.certificate is not None
    assert unpaid.certificate.reservation is None
    for lines, counts in (([*demos, old], (1, 0)), ([*demos, unpaid], (0, 1)), ([], (0, 0))):
        dpf.Demonstrations(lines).to_jsonl(tmp_path / "demos.jsonl")
        status, told = verify()
        assert (status, told["verified"]) == (1, False)
        assert (told["without_certificate"], told["without_ledger"]) == counts


@pytest.mark.usefixtures("demos")
def test_another_ledger_and_an_older_copy_do_not_verify(verify: Verify, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/copy.db"
    with dpf.BudgetLedger.open(url) as ledger:
        ledger.create("tickets", dpf.PrivacyBudget(8, 1e-4))
    shutil.copy(tmp_path / "demos.jsonl", tmp_path / "first.jsonl")
    assert "another ledger paid, or this one is an older copy" in problems(verify(ledger="copy.db")[1])
    generated(tmp_path, "copy.db")  # the same plans, under the same numbers
    assert verify(ledger="copy.db")[0] == 0
    status, told = verify("first.jsonl", "copy.db")
    assert (status, "older copy" in problems(told)) == (1, True)


@pytest.mark.usefixtures("demos")
def test_a_ledger_that_was_changed_verifies_nothing(verify: Verify, tmp_path: Path) -> None:
    tamper(tmp_path / "budget.db", "UPDATE dpfewshot_entry SET epsilon = epsilon / 2 WHERE id = 2")
    status, told = verify()
    assert (status, told["verified"]) == (1, False)
    assert all("does not agree with its own history" in one["problems"][0] for one in told["entries"])
    assert "entry 2 is settled with epsilon=" in told["accounts"][0]["problems"][0]


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_entry_that_was_not_paid_verifies_nothing(
    verify: Verify, tmp_path: Path, *, cancelled: bool
) -> None:
    facts = {"mechanism": "gaussian"}
    with dpf.BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db") as ledger:
        account = ledger.create("tickets", dpf.PrivacyBudget(8, 1e-4))
        entry, reservation = account.reserve(None, dpf.PrivacySpend(4.0, 1e-5), facts, DRAWS)
        if cancelled:
            account.cancel(entry)
    made = Certificate(plan_hash(4 * 10**12, 10**13, facts), None, "0.1.0", "tickets", reservation)
    dpf.Demonstrations([demonstration(certificate=made)]).to_jsonl(tmp_path / "demos.jsonl")
    state = "cancelled" if cancelled else "reserved"
    told = problems(verify()[1])
    assert told.startswith(f"the entry is {state}: no draw of it was paid for; line 1 is not what the entry")


@pytest.mark.usefixtures("demos")
def test_what_cannot_be_read_is_bad_input(verify: Verify, tmp_path: Path) -> None:
    assert verify("nowhere.jsonl")[0] == 2
    assert verify(ledger="nowhere.db")[0] == 2
    assert not (tmp_path / "nowhere.db").exists()


def test_runs_of_every_kind_verify(verify: Verify, tmp_path: Path) -> None:
    with dpf.BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db") as ledger:
        ledger.create("tickets", dpf.PrivacyBudget(8, 1e-4), parallel=False)
    generated(tmp_path)
    assert verify()[0] == 0
    with (
        ThreadPoolExecutor(2) as threads,
        synthesizer(ledger=f"sqlite:///{tmp_path}/threads.db", disjoint_parts=2) as one,
    ):
        one.generate_all(executor=threads).to_jsonl(tmp_path / "threads.jsonl")
    assert verify("threads.jsonl", "threads.db")[0] == 0
    people = [replace(one, unit=f"customer {place % 200}") for place, one in enumerate(tickets(800))]
    generated(tmp_path, "units.db", records=people, unit="customer")
    status, told = verify(ledger="units.db")
    assert (status, problems(told)) == (0, "")
    first = json.loads((tmp_path / "demos.jsonl").read_text().splitlines()[0])
    assert first["certificate"]["unit"] == "customer"


def test_a_resumed_run_verifies(make: Callable[..., dpf.Synthesizer], verify: Verify, tmp_path: Path) -> None:
    with make(fails_at(7), shots_per_label=2) as first, pytest.raises(dpf.BackendError):
        first.generate_all()
    with make(Hooked(), shots_per_label=2) as later:
        made = later.generate_all(resume=True)
    made.to_jsonl(tmp_path / "demos.jsonl")
    assert len({one.certificate for one in made}) == 1
    status, told = verify()
    assert (status, told["demonstrations"], problems(told)) == (0, 2, "")
