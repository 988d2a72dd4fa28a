"""An account is made on purpose: no typo, no look-alike and no missing file opens a fresh budget."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.names import dataset_name, similar
from dpfewshot.cli import project
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support import factory
from tests.support.accounts import DRAWS, LEASE
from tests.support.ledgers import tamper
from tests.support.scripts import Sentence, written

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.commands import Run

BUDGET = PrivacyBudget(4.0, 1e-5)
COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")


def synthesizer(ledger: BudgetLedger, dataset: str, **further: Any) -> dpf.Synthesizer:
    return factory.synthesizer(budget=BUDGET, account=ledger.account(dataset), max_tokens=3, **further)


# ---- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (COMPOSED, DECOMPOSED),
        ("tickets", "tickets "),
        ("tickets", "\ttickets\n"),
        ("my tickets", "my\u00a0 tickets"),
        ("tickets", "\uff54\uff49\uff43\uff4b\uff45\uff54\uff53"),
    ],
)
def test_two_spellings_are_one_account(ledger: BudgetLedger, first: str, second: str) -> None:
    ledger.create(first, BUDGET).reserve(None, PrivacySpend(3.0, 0.0), {}, DRAWS)
    for name in (first, second):
        assert ledger.account(name).spent.epsilon == 3.0
        assert ledger.account_or_create(name, BUDGET).spent.epsilon == 3.0
        assert ledger.create(name, BUDGET).spent.epsilon == 3.0
    assert len(ledger.datasets()) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("t\u0456ckets", r"mixes letters or marks of Cyrillic and Latin: write 'tickets'"),
        ("\u0441\u043e\u0440\u0443", r"looks like Latin letters but is Cyrillic: write 'copy'"),
        ("tickets\u1039", r"mixes letters or marks of Latin and Myanmar"),
        ("tickets\u05b0", r"mixes letters or marks of Hebrew and Latin"),
        ("t\u05c2ickets", r"mixes letters or marks of Hebrew and Latin"),
        ("tickets\u200b", "U[+]200B ZERO WIDTH SPACE: write 'tickets'"),
        ("tick\u00adets", "U[+]00AD SOFT HYPHEN: write 'tickets'"),
        ("tickets\u202e", "RIGHT-TO-LEFT OVERRIDE"),
        ("tick\x07ets", "U[+]0007"),
        ("tick\u034fets", "COMBINING GRAPHEME JOINER"),
        ("tickets\u3164", "FILLER"),
        ("t\u0131ckets", "DOTLESS I: write 'tickets'"),
        ("tickets \U0001f3ab", "U[+]1F3AB TICKET"),
        ("tickets \udc80", "U[+]DC80"),
        (" ", "is empty"),
        ("tickets" * 100, "more than 200 characters"),
    ],
)
def test_a_name_that_passes_for_another_is_refused(ledger: BudgetLedger, name: str, says: str) -> None:
    ledger.create("tickets", BUDGET)
    for call in (ledger.account, lambda n: ledger.create(n, BUDGET), lambda n: synthesizer(ledger, n)):
        with pytest.raises(LedgerError, match=says) as caught:
            call(name)
        assert str(caught.value).isascii()
    assert ledger.datasets() == ["tickets"]


@pytest.mark.parametrize(
    "name",
    [
        "tickets-2026/EU (v2)",
        COMPOSED,
        "straße",
        "тикеты",
        "εισιτήρια",
        "日本のチケット",
        "티켓",
        "टिकट",
        "تذاكر",
    ],
)
def test_names_in_one_script_stay_what_they_are(name: str) -> None:
    assert dataset_name(name) == name


@given(st.text())
def test_a_name_has_one_spelling(text: str) -> None:
    try:
        name = dataset_name(text)
    except LedgerError:
        return
    assert dataset_name(name) == name
    assert all(unicodedata.category(character)[0] not in "CZ" or character == " " for character in name)


def test_similar_names_are_named_and_others_are_not() -> None:
    names = ["tickets", "Tickets EU", "films"]
    assert similar("tikets", names)[0] == "tickets"
    assert similar("TICKETS_EU", names)[0] == "Tickets EU"
    assert similar("t\u0456ckets", names)[0] == "tickets"
    assert similar("payments", names) == []
    assert similar("\u30a8\u5834", ["\u5de5\u5834", *names]) == ["\u5de5\u5834"]  # a syllable for a character


# ---- on purpose ---------------------------------------------------------------------------------------


def test_a_typo_is_an_error_that_names_what_was_meant(ledger: BudgetLedger) -> None:
    ledger.create("tickets", BUDGET)
    with pytest.raises(LedgerError, match=r"'tikets' \(did you mean 'tickets'\?\).*ledger create"):
        synthesizer(ledger, "tikets")
    assert ledger.datasets() == ["tickets"]


def test_looking_makes_no_file(path: Path) -> None:
    url = f"sqlite:///{path}"
    with BudgetLedger.open(url) as ledger:
        assert ledger.datasets() == []
        with pytest.raises(LedgerError, match="does not exist"):
            ledger.account("tickets")
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"does not exist.*ledger create"):
            dpf.open_account(url, "tickets")
    assert not list(path.parent.iterdir())


def test_a_ledger_that_is_gone_is_not_made_anew(ledger: BudgetLedger, path: Path) -> None:
    account = ledger.create("tickets", BUDGET)
    for file in path.parent.iterdir():
        file.unlink()
    for call in (ledger.datasets, lambda: account.spent, lambda: account.draw(1, LEASE)):
        with pytest.raises(LedgerError, match="the file is gone"):
            call()
    assert not list(path.parent.iterdir())


def test_a_ledger_that_another_process_makes_is_seen(ledger: BudgetLedger, path: Path) -> None:
    assert ledger.datasets() == []
    with BudgetLedger.open(f"sqlite:///{path}") as other:
        other.create("tickets", BUDGET)
    assert ledger.account("tickets").budget == BUDGET


@pytest.mark.parametrize("verb", ["show", "history", "verify", "export", "change-budget"])
def test_no_verb_of_the_ledger_but_create_makes_a_file(path: Path, command: Run, verb: str) -> None:
    further = ["--epsilon", "1", "--delta", "1e-5"] if verb == "change-budget" else []
    status, _, told = command(
        "ledger", verb, "--ledger", f"sqlite:///{path}", "--dataset", "tickets", *further
    )
    assert status == 2
    assert "does not exist" in told
    assert "ledger create" in told
    assert not list(path.parent.iterdir())


def test_the_command_line_makes_an_account_only_when_told(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Run
) -> None:
    monkeypatch.setattr(project, "open_backend", lambda *_, **__: Sentence())
    generate = ["generate", *written(tmp_path), "--epsilon", "4", "--delta", "1e-5", "--max-tokens", "3"]
    generate += ["--set", "top_k=all", "--ledger", f"sqlite:///{path}", "--dataset"]
    status, _, told = command(*generate, "tickets")
    assert (status, "does not exist" in told, path.exists()) == (2, True, False)
    assert command(*generate, "tickets", "--set", "create=true")[0] == 0
    status, _, told = command(*generate, "tikets")
    assert (status, "did you mean 'tickets'?" in told) == (2, True)
    assert command(*generate, "tickets")[0] == 3  # the same budget, which is spent


def test_a_new_budget_does_not_cover_what_was_tampered_with(ledger: BudgetLedger, path: Path) -> None:
    ledger.create("tickets", BUDGET, unit="ticket").reserve(None, PrivacySpend(2.0, 1e-6), {}, DRAWS)
    tamper(path, "UPDATE dpfewshot_account SET unit = 'unit'")
    account = ledger.account("tickets")
    with pytest.raises(LedgerError, match="run dpfewshot ledger verify"):
        account.change_budget(PrivacyBudget(5.0, 1e-5))
    assert account.unit == "unit"
    assert account.verify().problems != ()


def test_an_open_account_is_known_by_more_than_its_number(path: Path) -> None:
    url = f"sqlite:///{path}"
    with BudgetLedger.open(url) as first:
        account = first.create("tickets", BUDGET)
        path.unlink()
        with BudgetLedger.open(url) as second:
            patients = second.create("patients", BUDGET)
            second.create("tickets", BUDGET)
            with pytest.raises(LedgerError, match="Open it again"):
                account.reserve(None, PrivacySpend(1.0, 0.0), {}, DRAWS)
            assert patients.entries == 0
