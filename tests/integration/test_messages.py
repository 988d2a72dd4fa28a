"""What accounts say of a budget that is too small, of a changed entry and of no account."""

from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.account.ledger import BudgetLedger, open_account
from dpfewshot.account.verification import check
from dpfewshot.cli.application import run
from tests.support.accounts import charged


def test_a_missing_account_is_created_for_the_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with pytest.raises(dpf.LedgerError, match=r"--relation add-remove --unit customer$"):
        open_account(url, "tickets", relation="add-remove", unit="customer")


def test_an_overdrawn_account_and_a_changed_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with BudgetLedger.open(url) as ledger:
        account = ledger.create("tickets", dpf.PrivacyBudget(4.0, 1e-5))
        charged(account, None, dpf.PrivacySpend(3.5, 1e-6))
        snapshot = account.snapshot()
        snapshot.entries[0]["epsilon"] = 10**12
        [problem] = check(snapshot).problems
        assert "is charged with epsilon=1.0, delta=1e-06 for the whole data set, its history" in problem
        with pytest.raises(dpf.LedgerError, match="change-budget"):
            ledger.create("tickets", dpf.PrivacyBudget(3.0, 1e-5))
    change = ["ledger", "change-budget", "--ledger", url, "--dataset", "tickets", "--delta", "1e-5"]
    assert run([*change, "--epsilon", "3"]) == 0
    assert "overdrawn" in capsys.readouterr().err
    assert run([*change, "--epsilon", "4"]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    assert "1 entry, relation zero-out, each record is one unit" in printed.out
