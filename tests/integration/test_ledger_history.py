"""The history of an account: its contents, and that every change of it is detected."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpfewshot.budget.draws import DrawCounts
from dpfewshot.errors import LedgerError
from dpfewshot.ledger import BudgetLedger, LedgerAccount
from dpfewshot.ledger import history as history_module
from dpfewshot.ledger.counting import columns
from dpfewshot.values import PrivacyBudget, PrivacySpend

BUDGET = PrivacyBudget(1.0, 1e-5)


def lived(url: str) -> LedgerAccount:
    """An account that has seen every act."""
    account = BudgetLedger.open(url).create("tickets", BUDGET, unit="customer")
    drew = account.reserve("trec: Location", PrivacySpend(0.25, 1e-6), {"mechanism": "gaussian", "steps": 15})
    account.charge(drew)
    account.settle(drew)
    account.cancel(account.reserve(None, PrivacySpend(0.1, 0.0), {}))
    account.change_budget(PrivacyBudget(2.0, 1e-5))
    account.charge(account.reserve("trec: Number", PrivacySpend(0.5, 0.0), {}))
    account.reserve(None, PrivacySpend(0.5, 0.0), {})
    return account


def test_the_history_says_when_who_and_what(ledger_url: str) -> None:
    rows = lived(ledger_url).history()
    assert [(row["act"], row["entry"], row["scope"], row["epsilon"], row["delta"]) for row in rows] == [
        ("create", None, None, 1.0, 1e-5),
        ("reserve", 1, "trec: Location", 0.25, 1e-6),
        ("charge", 1, "trec: Location", None, None),
        ("settle", 1, "trec: Location", None, None),
        ("reserve", 2, None, 0.1, 0.0),
        ("cancel", 2, None, None, None),
        ("change-budget", None, None, 2.0, 1e-5),
        ("reserve", 3, "trec: Number", 0.5, 0.0),
        ("charge", 3, "trec: Number", None, None),
        ("reserve", 4, None, 0.5, 0.0),
    ]
    assert rows[0]["details"] == {
        "dataset": "tickets",
        "relation": "zero-out",
        "unit": "customer",
        "parallel": True,
    }
    assert rows[1]["details"] == {"mechanism": "gaussian", "steps": 15}
    assert all(re.fullmatch(r".+@.+:\d+", str(row["actor"])) for row in rows)
    assert all(str(row["at"]).endswith("+00:00") for row in rows)
    assert {row["package_version"] for row in rows} == {history_module.package_version()}


def test_acts_that_change_nothing_leave_no_row(ledger_url: str) -> None:
    account = lived(ledger_url)
    before = account.chain_tip
    account.settle(1)
    account.cancel(1)
    account.charge(3)
    with pytest.raises(LedgerError):
        account.charge(2)
    assert account.chain_tip == before


def test_the_actor_can_be_named(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFEWSHOT_LEDGER_ACTOR", "nightly job")
    assert {row["actor"] for row in lived(ledger_url).history()} == {"nightly job"}


def test_anybody_can_recompute_the_chain_from_an_export(ledger_url: str) -> None:
    account = lived(ledger_url)
    document = json.loads(json.dumps(account.export()))
    previous = "0" * 64
    for row in document["history"]:
        told = row.pop("hash")
        assert row["previous"] == previous
        text = json.dumps(row, sort_keys=True, separators=(",", ":"))
        previous = hashlib.sha256(text.encode()).hexdigest()
        assert previous == told
    assert document["head"] == previous == account.chain_tip
    assert document["account"]["epsilon"] == 2 * 10**12
    assert [entry["state"] for entry in document["entries"]] == [
        "settled",
        "cancelled",
        "charged",
        "reserved",
    ]


def test_an_honest_account_agrees_and_every_head_it_had_is_found(ledger_url: str) -> None:
    account = lived(ledger_url)
    for row in account.history():
        found = account.verify(str(row["hash"]))
        assert found.ok
        assert (found.events, found.chain_tip) == (10, account.chain_tip)


TAMPERINGS = {
    "a cost is lowered": "UPDATE dpfewshot_entry SET epsilon = 1 WHERE id = 3",
    "a cost and its row are lowered": (
        "UPDATE dpfewshot_entry SET epsilon = 1 WHERE id = 3;"
        "UPDATE dpfewshot_history SET epsilon = 1 WHERE number = 8"
    ),
    "an entry is cancelled": "UPDATE dpfewshot_entry SET state = 'cancelled' WHERE id = 3",
    "an entry is dropped": "DELETE FROM dpfewshot_entry WHERE id = 3",
    "an entry is added": (
        "INSERT INTO dpfewshot_entry (id, account_id, epsilon, delta, state) VALUES (99, 1, 1, 1, 'charged')"
    ),
    "an entry changes its scope": "UPDATE dpfewshot_entry SET scope = 'trec: Location' WHERE id = 4",
    "the budget is raised": "UPDATE dpfewshot_account SET epsilon = 9000000000000",
    "the relation is changed": "UPDATE dpfewshot_account SET relation = 'add-remove'",
    "the unit is changed": "UPDATE dpfewshot_account SET unit = NULL",
    "the partition is forgotten": "UPDATE dpfewshot_account SET partition = NULL",
    "plans run side by side": "UPDATE dpfewshot_account SET parallel = false",
    "the data set is renamed": "UPDATE dpfewshot_account SET dataset = 'others'",
    "a row is dropped": "DELETE FROM dpfewshot_history WHERE number = 8",
    "the last rows are dropped": "DELETE FROM dpfewshot_history WHERE number > 7",
    "all rows are dropped": "DELETE FROM dpfewshot_history",
    "a row says another act": "UPDATE dpfewshot_history SET act = 'cancel' WHERE number = 3",
    "a row says another time": "UPDATE dpfewshot_history SET at = '2001-01-01' WHERE number = 3",
    "a row says another actor": "UPDATE dpfewshot_history SET actor = 'nobody' WHERE number = 3",
    "a row says other settings": "UPDATE dpfewshot_history SET details = '{}' WHERE number = 2",
    "a hash is replaced": "UPDATE dpfewshot_history SET hash = previous WHERE number = 5",
}


DEEP_IN_THE_CHAIN = {
    "a cost and its row are lowered",
    "a row says another time",
    "a row says another actor",
    "a row says other settings",
    "a hash is replaced",
}
"""What `verify` alone finds: a row before the last that no sum depends on, or that agrees with its entry."""


@pytest.mark.parametrize("statements", TAMPERINGS.values(), ids=TAMPERINGS)
def test_tampering_is_found(tmp_path: Path, statements: str) -> None:
    path = tmp_path / "budget.db"
    account = lived(f"sqlite:///{path}")
    assert account.verify().ok
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    assert not account.verify().ok


FOUND_BY_RESERVING = {name: TAMPERINGS[name] for name in TAMPERINGS if name not in DEEP_IN_THE_CHAIN} | {
    "the last row says another time": "UPDATE dpfewshot_history SET at = '2001-01-01' WHERE number = 10",
    "the last hash is replaced": "UPDATE dpfewshot_history SET hash = previous WHERE number = 10",
    "the row before the last is another": "UPDATE dpfewshot_history SET hash = previous WHERE number = 9",
    "the first row says another relation": (
        "UPDATE dpfewshot_account SET relation = 'add-remove';"
        "UPDATE dpfewshot_history SET details = replace(details, 'zero-out', 'add-remove') WHERE number = 1"
    ),
    "the budget's row is raised with it": (
        "UPDATE dpfewshot_account SET epsilon = 9000000000000;"
        "UPDATE dpfewshot_history SET epsilon = 9000000000000 WHERE number = 7"
    ),
}


@pytest.mark.parametrize("statements", FOUND_BY_RESERVING.values(), ids=FOUND_BY_RESERVING)
def test_nothing_is_reserved_on_an_account_whose_tip_was_tampered_with(
    tmp_path: Path, statements: str
) -> None:
    path = tmp_path / "budget.db"
    account = lived(f"sqlite:///{path}")
    tamper(path, statements)
    entries = account.entries
    with pytest.raises(LedgerError, match="run dpfewshot ledger verify"):
        account.reserve("trec: Number", PrivacySpend(0.001, 0.0), {})
    assert account.entries == entries
    assert not account.verify().ok


@pytest.mark.parametrize("scope", [None, "trec: Number"])
def test_an_honest_account_still_works(ledger_url: str, scope: str | None) -> None:
    account = lived(ledger_url)
    account.reserve(scope, PrivacySpend(0.0, 0.0), {})
    account.change_budget(PrivacyBudget(9.0, 1e-5))
    account.cancel(account.reserve("trec: Other", PrivacySpend(0.1, 0.0), {}))
    account.reserve("trec: Other", PrivacySpend(0.1, 0.0), {})
    assert account.verify().ok


# draws


def drew(url: str) -> LedgerAccount:
    """An account with an entry that drew, was resumed, and has a block left of two."""
    account = BudgetLedger.open(url).create("tickets", BUDGET)
    entry = account.reserve(
        "trec: Location", PrivacySpend(0.25, 1e-6), {"steps": 4}, DrawCounts((4,), "first")
    )
    account.draw(entry, "first", 0)
    words = entry, "trec: Location", PrivacySpend(0.25, 1e-6), {"steps": 4}
    account.resume(*words, known=["first"], draws=DrawCounts((2,), "second"))
    account.draw(entry, "second", 0)
    return account


def test_the_history_shows_resumes_and_no_row_for_a_draw(ledger_url: str) -> None:
    account = drew(ledger_url)
    rows = account.history()
    assert [row["act"] for row in rows] == ["create", "reserve", "charge", "resume"]
    assert rows[1]["details"] == {"steps": 4, "lease": {"id": "first", "blocks": [4]}}
    assert rows[3]["details"] == {
        "lease": {"id": "second", "blocks": [2]},
        "previous": "first",
        "reserve": rows[1]["hash"],
    }
    account.settle(1, "second")
    assert account.history()[-1]["details"] == {"lease": {"id": "second", "blocks": [1]}}
    assert account.verify().problems == ()


def stored(blocks: int, lease: str) -> str:
    words = columns(DrawCounts((blocks,), lease))
    assignments = ", ".join(f"{name} = '{word}'" for name, word in words.items())
    return f"UPDATE dpfewshot_entry SET {assignments}"  # noqa: S608 - of the test's own words


DRAWS_TAMPERED = {
    "blocks are raised": "UPDATE dpfewshot_entry SET blocks = '[2]'",
    "blocks are no list": "UPDATE dpfewshot_entry SET blocks = 'many'",
    "the lease is an older one": "UPDATE dpfewshot_entry SET lease = 'first'",
    "draws are no more counted": "UPDATE dpfewshot_entry SET blocks = NULL, lease = NULL",
    "blocks are raised above the resume's, with their hash": stored(3, "second"),
    "an older lease is put back, with its hash": stored(1, "first"),
    "the resume granted more": (
        "UPDATE dpfewshot_history SET details = replace(details, '[2]', '[4]') WHERE number = 4"
    ),
}


@pytest.mark.parametrize("statements", DRAWS_TAMPERED.values(), ids=DRAWS_TAMPERED)
def test_tampering_with_draws_is_found(tmp_path: Path, statements: str) -> None:
    path = tmp_path / "budget.db"
    account = drew(f"sqlite:///{path}")
    assert account.verify().ok
    tamper(path, statements)
    assert not account.verify().ok


def test_nothing_is_drawn_from_an_entry_whose_draws_were_raised(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    account = drew(f"sqlite:///{path}")
    tamper(path, DRAWS_TAMPERED["blocks are raised"])
    with pytest.raises(LedgerError, match="run dpfewshot ledger verify"):
        account.draw(1, "second", 0)


def test_a_resume_is_bound_to_the_words_of_its_reservation(ledger_url: str) -> None:
    account = drew(ledger_url)
    words: dict[str, Any] = {
        "entry": 1, "scope": "trec: Location", "cost": PrivacySpend(0.25, 1e-6), "details": {"steps": 4}
    }  # fmt: skip
    others: tuple[dict[str, Any], ...] = (
        {"scope": "trec: Number"},
        {"scope": None},
        {"cost": PrivacySpend(0.5, 1e-6)},
        {"details": {"steps": 5}},
    )
    for other in others:
        with pytest.raises(LedgerError, match="reserved for another plan"):
            account.resume(**(words | other), known=["second"], draws=DrawCounts((1,), "third"))
    for entry in (2, 2**70):
        with pytest.raises(LedgerError):
            account.resume(**(words | {"entry": entry}), known=["second"], draws=DrawCounts((1,), "third"))
    with pytest.raises(LedgerError, match="cannot be called 'lease'"):
        account.reserve(None, PrivacySpend(0.1, 0.0), {"lease": "mine"})
    assert len(account.history()) == 4


def tamper(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)


# who acted


@pytest.mark.parametrize(
    "actor",
    [
        "me\n2026-01-01  auditor@host:1  verify",
        "me\r",
        "me\x1b[2K",
        "me\x85",
        "me\u2028",
        "me\u202egro.elpmaxe",
        "me\u200b",
        "auditor  charge",
        " me",
        "   ",
        "me\udc80",
        "m" * 201,
    ],
)
def test_an_actor_that_could_forge_a_line_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actor: str
) -> None:
    account = lived(f"sqlite:///{tmp_path / 'budget.db'}")
    monkeypatch.setattr(history_module.os, "environ", {"DPFEWSHOT_LEDGER_ACTOR": actor})
    with pytest.raises(LedgerError, match="DPFEWSHOT_LEDGER_ACTOR must be at most 200 printable"):
        account.reserve(None, PrivacySpend(0.1, 0.0), {})
    assert len(account.history()) == 10


def test_a_user_name_that_could_forge_a_line_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_user", lambda: "me\n  \u202eyou" + "x" * 300)
    [row] = BudgetLedger.open(f"sqlite:///{tmp_path / 'budget.db'}").create("tickets", BUDGET).history()
    actor = str(row["actor"])
    assert actor.startswith(r"me\n \x20\u202eyoux")
    assert len(actor) == 200


def rewrite(path: Path) -> None:
    """Leave the last two acts out, and make everything else agree."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DELETE FROM dpfewshot_history WHERE number > 8; DELETE FROM dpfewshot_entry WHERE id = 4;"
            "UPDATE dpfewshot_entry SET state = 'reserved' WHERE id = 3"
        )


def test_a_history_that_was_written_anew_is_found_by_a_head_that_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    account = lived(f"sqlite:///{path}")
    head = account.chain_tip
    rewrite(path)
    assert account.verify().ok  # by itself it cannot be told
    assert "copy" in account.verify(head).problems[0]


def test_a_copy_that_was_restored_is_found_by_a_head_that_was_noted(tmp_path: Path) -> None:
    path, copy = tmp_path / "budget.db", tmp_path / "copy.db"
    account = lived(f"sqlite:///{path}")
    shutil.copy(path, copy)
    account.reserve(None, PrivacySpend(0.5, 0.0), {})
    noted = account.chain_tip
    with BudgetLedger.open(f"sqlite:///{copy}") as restored:
        forgetful = restored.account("tickets")
        assert forgetful.verify().ok
        assert not forgetful.verify(noted).ok
        forgetful.reserve(None, PrivacySpend(0.25, 0.0), {})  # both go on: two histories
        assert forgetful.verify(forgetful.chain_tip).ok
        assert not account.verify(forgetful.chain_tip).ok
        assert not forgetful.verify(noted).ok


def test_a_clock_that_goes_back_changes_nothing(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    account = lived(ledger_url)
    monkeypatch.setattr(history_module, "now", lambda: "1999-12-31T23:59:59.000000+00:00")
    account.charge(4)
    with pytest.raises(LedgerError):
        account.settle(2)
    assert account.history()[-1]["at"] == "1999-12-31T23:59:59.000000+00:00"
    assert account.verify().ok
    assert account.spent == PrivacySpend(1.0, 1e-6)


def test_the_old_names_of_the_chain_tip_warn(tmp_path: Path) -> None:
    with BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db") as ledger:
        account = ledger.create("tickets", BUDGET)
        with pytest.warns(DeprecationWarning, match="chain_tip"):
            noted = account.head
        with pytest.warns(DeprecationWarning, match="chain_tip"):
            found = account.verify(head=noted)  # type: ignore[call-arg]
        with pytest.warns(DeprecationWarning, match="events"):
            assert found.acts == 1  # type: ignore[attr-defined]
        with pytest.warns(DeprecationWarning, match="chain_tip"):
            assert found.head == noted == account.chain_tip  # type: ignore[attr-defined]
