"""Every change of an account's rows or of its history is detected."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpfewshot.account import sql
from dpfewshot.account.account import Account
from dpfewshot.account.database import Database
from dpfewshot.account.draws import DrawCounts, columns
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.sql import seal_of
from dpfewshot.account.tables import accounts
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS
from tests.support.ledgers import drew, lived, rows, tamper, three_plans

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
    "an order is given to sums": "UPDATE dpfewshot_account SET renyi_order = 6",
    "plans run side by side": "UPDATE dpfewshot_account SET parallel = false",
    "the data set is renamed": "UPDATE dpfewshot_account SET dataset = 'others'",
    "a row is dropped": "DELETE FROM dpfewshot_history WHERE number = 8",
    "the last rows are dropped": "DELETE FROM dpfewshot_history WHERE number > 7",
    "all rows are dropped": "DELETE FROM dpfewshot_history",
    "a row says another act": "UPDATE dpfewshot_history SET act = 'cancel' WHERE number = 3",
    "a row says another time": "UPDATE dpfewshot_history SET at = '2001-01-01' WHERE number = 3",
    "a row says another actor": "UPDATE dpfewshot_history SET actor = 'nobody' WHERE number = 3",
    "a plan has no number": "UPDATE dpfewshot_history SET entry = NULL WHERE number = 10",
    "a row says other settings": "UPDATE dpfewshot_history SET details = '{}' WHERE number = 2",
    "a hash is replaced": "UPDATE dpfewshot_history SET hash = previous WHERE number = 5",
}
OF_A_RENYI_RULE = {
    "a divergence is lowered": "UPDATE dpfewshot_entry SET renyi = 1 WHERE id = 2",
    "a divergence is dropped": "UPDATE dpfewshot_entry SET renyi = NULL WHERE id = 2",
    "a divergence is added": "UPDATE dpfewshot_entry SET renyi = 1 WHERE id = 3",
    "a divergence is moved": (
        "UPDATE dpfewshot_entry SET renyi = renyi + 1 WHERE id = 1;"
        "UPDATE dpfewshot_entry SET renyi = renyi - 1 WHERE id = 2"
    ),
    "a divergence and its row are lowered": (
        "UPDATE dpfewshot_entry SET renyi = 1 WHERE id = 2;"
        "UPDATE dpfewshot_history SET renyi = 1 WHERE number = 3"
    ),
    "a divergence's row is dropped": "UPDATE dpfewshot_history SET renyi = NULL WHERE number = 3",
    "the order is lowered": "UPDATE dpfewshot_account SET renyi_order = 2",
    "the order is dropped": "UPDATE dpfewshot_account SET renyi_order = NULL",
    "the order and its row are lowered": (
        "UPDATE dpfewshot_account SET renyi_order = 2;"
        "UPDATE dpfewshot_history SET details = replace(details, '\"renyi_order\": 6', '\"renyi_order\": 2')"
    ),
}
DEEP_IN_THE_CHAIN = {
    "a cost and its row are lowered",
    "a row says another time",
    "a row says another actor",
    "a row says other settings",
    "a hash is replaced",
    "a divergence is moved",
    "a divergence and its row are lowered",
}
"""What `verify` alone finds: a row before the last that no sum depends on, or that agrees with its entry."""


def cases(of_sums: dict[str, str]) -> pytest.MarkDecorator:
    """Tamperings of an account of sums, and those of one with a Rényi rule that they are like."""
    names = [name for name in OF_A_RENYI_RULE if of_sums is TAMPERINGS or name not in DEEP_IN_THE_CHAIN]
    both = [(lived, each) for each in of_sums.values()]
    both += [(three_plans, OF_A_RENYI_RULE[name]) for name in names]
    return pytest.mark.parametrize(("make", "statements"), both, ids=[*of_sums, *names])


def is_found(account: Account) -> bool:
    """Whether the account says that it was tampered with; one that was renamed is not read at all."""
    try:
        return not account.verify().ok
    except LedgerError as error:
        return "is not as it was opened" in str(error)


@cases(TAMPERINGS)
def test_tampering_is_found(path: Path, url: str, make: Callable[[str], Account], statements: str) -> None:
    account = make(url)
    assert account.verify().ok
    tamper(path, statements)
    with BudgetLedger.open(url) as ledger:
        assert all(map(is_found, (account, *map(ledger.account, ledger.datasets()))))


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


@cases(FOUND_BY_RESERVING)
def test_nothing_is_reserved_on_an_account_whose_tip_was_tampered_with(
    path: Path, url: str, make: Callable[[str], Account], statements: str
) -> None:
    opened_before = make(url)
    tamper(path, statements)
    with BudgetLedger.open(url) as ledger:
        for account in (opened_before, *map(ledger.account, ledger.datasets())):
            entries = rows(path, "SELECT id, state FROM dpfewshot_entry")
            with pytest.raises(LedgerError, match="run dpfewshot ledger verify"):
                account.reserve("trec: Number", PrivacySpend(0.001, 0.0), {}, DRAWS)
            assert rows(path, "SELECT id, state FROM dpfewshot_entry") == entries
            assert is_found(account)


ENTRIES_ALONE = {
    "a cost is lowered",
    "an entry is cancelled",
    "an entry is dropped",
    "an entry is added",
    "an entry changes its scope",
    "a row is dropped",
    "a row says another act",
}
"""What `verify` alone finds in a long history: no total depends on it."""


@pytest.mark.parametrize("name", FOUND_BY_RESERVING)
def test_in_a_long_history_no_tampering_lowers_what_is_spent(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sql, "WHOLE", 0)
    account = lived(url)
    tamper(path, FOUND_BY_RESERVING[name])
    if name in ENTRIES_ALONE:
        account.reserve("trec: Number", PrivacySpend(0.001, 0.0), {}, DRAWS)
        assert account.spent == PrivacySpend(1.001, 1e-6)
    else:
        with pytest.raises(LedgerError, match="run dpfewshot ledger verify"):
            account.reserve("trec: Number", PrivacySpend(0.001, 0.0), {}, DRAWS)
    assert is_found(account)


TOTALS = {
    "the sums are lowered": "UPDATE dpfewshot_account SET sums = '[]'",
    "the seal is replaced": "UPDATE dpfewshot_account SET seal = 'none'",
    "the totals are dropped": "UPDATE dpfewshot_account SET sums = '', seal = ''",
    "the tip is another": "UPDATE dpfewshot_account SET chain_tip = 'none', events = 3",
}


@pytest.mark.parametrize("statements", TOTALS.values(), ids=TOTALS)
def test_totals_without_their_seal_are_added_up_again(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, statements: str
) -> None:
    monkeypatch.setattr(sql, "WHOLE", 0)
    account = lived(url)
    tamper(path, statements)
    assert account.spent == PrivacySpend(1.0, 1e-6)
    account.reserve("trec: Number", PrivacySpend(0.001, 0.0), {}, DRAWS)
    assert account.spent == PrivacySpend(1.001, 1e-6)
    assert account.verify().ok


def test_a_cancelled_entry_gives_back_what_its_event_reserved(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "WHOLE", 0)
    account = lived(url)
    tamper(path, "UPDATE dpfewshot_entry SET epsilon = 900000000000 WHERE id = 4")
    account.cancel(4)
    assert account.spent == PrivacySpend(0.5, 1e-6)
    assert not account.verify().ok


def test_totals_that_were_lowered_under_a_new_seal_are_found_by_verifying(url: str) -> None:
    account = lived(url)
    with closing(Database(url)) as database, database.write() as connection:
        row = dict(connection.execute(accounts.select()).mappings().one()) | {"sums": "[]"}
        connection.execute(accounts.update().values(sums="[]", seal=seal_of(row)))
    assert account.verify().problems == ("the running totals are not those of its history",)
    with pytest.raises(LedgerError, match="running totals"):
        account.reserve(None, PrivacySpend(0.001, 0.0), {}, DRAWS)


@pytest.mark.parametrize("scope", [None, "trec: Number"])
def test_an_honest_account_still_works(ledger_url: str, scope: str | None) -> None:
    account = lived(ledger_url)
    account.reserve(scope, PrivacySpend(0.0, 0.0), {}, DRAWS)
    account.change_budget(PrivacyBudget(9.0, 1e-5))
    account.reserve("trec: Other", PrivacySpend(0.1, 0.0), {}, DRAWS)
    account.cancel(account.reserve("trec: Other", PrivacySpend(0.1, 0.0), {}, DRAWS).entry)
    assert account.verify().ok


def stored(draws: int, lease: str) -> str:
    words = columns(DrawCounts(draws, lease))
    assignments = ", ".join(
        f"{name} = {'NULL' if word is None else repr(word)}" for name, word in words.items()
    )
    return f"UPDATE dpfewshot_entry SET {assignments}"  # noqa: S608 - of the test's own words


DRAWS_TAMPERED = {
    "draws are raised": "UPDATE dpfewshot_entry SET draws_left = 3",
    "draws are no number": "UPDATE dpfewshot_entry SET draws_left = 'many'",
    "the lease is an older one": "UPDATE dpfewshot_entry SET lease = 'first'",
    "draws are no more counted": "UPDATE dpfewshot_entry SET draws_left = NULL, lease = NULL",
    "draws are raised above the resume's, with their hash": stored(4, "second"),
    "an older lease is put back, with its hash": stored(1, "first"),
    "the resume granted more": (
        "UPDATE dpfewshot_history SET details = replace(details, '3', '4') WHERE number = 4"
    ),
}


@pytest.mark.parametrize("statements", DRAWS_TAMPERED.values(), ids=DRAWS_TAMPERED)
def test_tampering_with_draws_is_found(path: Path, url: str, statements: str) -> None:
    account = drew(url)
    assert account.verify().ok
    tamper(path, statements)
    assert not account.verify().ok


def test_nothing_is_drawn_from_an_entry_whose_draws_were_raised(path: Path, url: str) -> None:
    account = drew(url)
    tamper(path, DRAWS_TAMPERED["draws are raised"])
    with pytest.raises(LedgerError, match="run dpfewshot ledger verify"):
        account.draw(1, "second")


def rewrite(path: Path) -> None:
    """Leave the last two acts out, and make everything else agree."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DELETE FROM dpfewshot_history WHERE number > 8; DELETE FROM dpfewshot_entry WHERE id = 4;"
            "UPDATE dpfewshot_entry SET state = 'reserved' WHERE id = 3;"
            "UPDATE dpfewshot_account SET seal = ''"
        )
        connection.execute(
            "UPDATE dpfewshot_entry SET draws_left = :draws_left, draws_hash = :draws_hash WHERE id = 3",
            columns(DRAWS),
        )
        connection.commit()


def test_a_history_that_was_written_anew_is_found_by_a_head_that_was_noted(path: Path, url: str) -> None:
    account = lived(url)
    head = account.chain_tip
    rewrite(path)
    assert account.verify().ok  # by itself it cannot be told
    assert "copy" in account.verify(head).problems[0]


def test_a_copy_that_was_restored_is_found_by_a_head_that_was_noted(path: Path, url: str) -> None:
    copy = path.with_name("copy.db")
    account = lived(url)
    shutil.copy(path, copy)
    account.reserve(None, PrivacySpend(0.5, 0.0), {}, DRAWS)
    noted = account.chain_tip
    with BudgetLedger.open(f"sqlite:///{copy}") as restored:
        forgetful = restored.account("tickets")
        assert forgetful.verify().ok
        assert not forgetful.verify(noted).ok
        forgetful.reserve(None, PrivacySpend(0.25, 0.0), {}, DRAWS)  # both go on: two histories
        assert forgetful.verify(forgetful.chain_tip).ok
        assert not account.verify(forgetful.chain_tip).ok
        assert not forgetful.verify(noted).ok
