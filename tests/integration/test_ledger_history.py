"""The history of an account: what it says, who acted, and its chain."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfewshot import __version__
from dpfewshot.account import history as history_module
from dpfewshot.account.draws import granted
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacySpend
from tests.support.accounts import DRAWS, LEASE, resume
from tests.support.ledgers import BUDGET, drew, lived


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
    identifier = rows[1]["details"].pop("reservation")  # type: ignore[attr-defined]
    assert re.fullmatch("[0-9a-f]{32}", identifier)
    assert rows[1]["details"] == {"mechanism": "gaussian", "steps": 15, **granted(DRAWS)}
    assert all(re.fullmatch(r".+@.+:\d+", str(row["actor"])) for row in rows)
    assert all(str(row["at"]).endswith("+00:00") for row in rows)
    assert {row["package_version"] for row in rows} == {__version__}


def test_acts_that_change_nothing_leave_no_row(ledger_url: str) -> None:
    account = lived(ledger_url)
    before = account.chain_tip
    account.settle(1, LEASE)
    account.cancel(1)
    account.draw(3, LEASE)
    with pytest.raises(LedgerError):
        account.draw(2, LEASE)
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
    assert document["account"]["epsilon_in_1e-12"] == 2 * 10**12
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


def test_the_history_shows_resumes_and_no_row_for_a_draw(ledger_url: str) -> None:
    account = drew(ledger_url)
    rows = account.history()
    assert [row["act"] for row in rows] == ["create", "reserve", "charge", "resume"]
    assert rows[1]["details"].pop("reservation")  # type: ignore[attr-defined]
    assert rows[1]["details"] == {"steps": 4, "lease": {"id": "first", "draws": 4}}
    assert rows[3]["details"] == {
        "lease": {"id": "second", "draws": 3},
        "previous": "first",
        "reserve": rows[1]["hash"],
    }
    account.settle(1, "second")
    assert account.history()[-1]["details"] == {"lease": {"id": "second", "draws": 2}}
    assert account.verify().problems == ()


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
            resume(account, **(words | other), lease="third")
    for entry in (2, 2**70):
        with pytest.raises(LedgerError):
            resume(account, **(words | {"entry": entry}), lease="third")
    with pytest.raises(LedgerError, match="cannot be called 'lease'"):
        account.reserve(None, PrivacySpend(0.1, 0.0), {"lease": "mine"}, DRAWS)
    with pytest.raises(LedgerError, match="cannot be called 'reservation'"):
        account.reserve(None, PrivacySpend(0.1, 0.0), {"reservation": "mine"}, DRAWS)
    assert len(account.history()) == 4


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
        account.reserve(None, PrivacySpend(0.1, 0.0), {}, DRAWS)
    assert len(account.history()) == 10


def test_a_user_name_that_could_forge_a_line_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module.getpass, "getuser", lambda: "me\n  \u202eyou" + "x" * 300)
    [row] = BudgetLedger.open(f"sqlite:///{tmp_path / 'budget.db'}").create("tickets", BUDGET).history()
    actor = str(row["actor"])
    assert actor.startswith(r"me\n \x20\u202eyoux")
    assert len(actor) == 200


def test_a_clock_that_goes_back_changes_nothing(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    account = lived(ledger_url)
    past = SimpleNamespace(now=lambda _: datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC))
    monkeypatch.setattr(history_module, "datetime", past)
    account.draw(4, LEASE)
    with pytest.raises(LedgerError):
        account.settle(2, LEASE)
    assert account.history()[-1]["at"] == "1999-12-31T23:59:59.000000+00:00"
    assert account.verify().ok
    assert account.spent == PrivacySpend(1.0, 1e-6)
