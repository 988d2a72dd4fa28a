"""One transaction at a time on a ledger's file, under every name and through copies."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from dpfewshot.account import database, file_lock
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.sql import SqlTransaction
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS
from tests.support.processes import environment

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = PrivacyBudget(4.0, 1e-5)
COST = PrivacySpend(0.1, 1e-8)

SPENDS = """
import sys
import dpfewshot as dpf
from dpfewshot.account import database
from tests.support.accounts import DRAWS
if sys.argv[2] == "unchecked":
    database.check_names = lambda file: None
account = dpf.BudgetLedger.open(sys.argv[1]).account("tickets")
admitted = 0
try:
    while admitted < int(sys.argv[3]):
        account.reserve(None, dpf.PrivacySpend(0.1, 1e-8), {}, DRAWS)
        admitted += 1
except dpf.BudgetExceeded:
    pass
print(admitted)
"""


def spending(path: Path, check: str = "checked", most: int = 99) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", SPENDS, f"sqlite:///{path}", check, str(most)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "budget.db"
    with BudgetLedger.open(f"sqlite:///{file}") as ledger:
        ledger.create("tickets", BUDGET)
    return file


def second_name(path: Path) -> Path:
    (path.parent / "other").mkdir()
    os.link(path, path.parent / "other" / path.name)
    return path.parent / "other" / path.name


def test_a_file_of_two_names_is_refused_by_either(path: Path) -> None:
    with BudgetLedger.open(f"sqlite:///{path}") as ledger:
        account = ledger.account("tickets")
        other = second_name(path)
        with pytest.raises(LedgerError, match="2 names"):
            account.reserve(None, COST, {}, DRAWS)
        with pytest.raises(LedgerError, match="2 names"):
            BudgetLedger.open(f"sqlite:///{other}")
        other.unlink()
        assert account.reserve(None, COST, {}, DRAWS).entry == 1


def test_a_file_that_is_mounted_by_itself_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container has it whose operator mounted the file: its -wal is then the container's own."""
    mounts = tmp_path / "mountinfo"
    point = str(path).replace(" ", "\\040")
    mounts.write_text(f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:1 /budget.db {point} rw - ext4 a rw\n")
    monkeypatch.setattr(file_lock, "_MOUNTS", mounts)
    with pytest.raises(LedgerError, match="mount its folder"):
        BudgetLedger.open(f"sqlite:///{path}")
    mounts.write_text(f"2 1 0:1 / {tmp_path} rw - ext4 a rw\n")
    BudgetLedger.open(f"sqlite:///{path}").close()


def test_two_names_spend_one_budget_where_nobody_sees_that_they_are_two(path: Path) -> None:
    both = [spending(name, "unchecked") for name in (path, second_name(path))]
    answers = [each.communicate(timeout=60) for each in both]
    assert sum(int(out) for out, _ in answers) == 40, answers
    (path.parent / "other" / path.name).unlink()
    with BudgetLedger.open(f"sqlite:///{path}") as ledger:
        assert ledger.account("tickets").verify().problems == ()


def test_a_copy_by_another_thread_lets_nobody_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes a file drops every POSIX lock that its process has there."""
    real = SqlTransaction.checked
    others: list[subprocess.Popen[str]] = []

    def slow(transaction: SqlTransaction) -> object:
        standing = real(transaction)
        copying = threading.Thread(target=lambda: [each.read_bytes() for each in path.parent.glob("budget*")])
        copying.start()
        copying.join()
        others.append(spending(path, most=1))
        with suppress(subprocess.TimeoutExpired):
            others[0].wait(timeout=1.5)
        return standing

    with BudgetLedger.open(f"sqlite:///{path}") as ledger:
        monkeypatch.setattr(SqlTransaction, "checked", slow)
        ledger.account("tickets").reserve(None, PrivacySpend(4.0, 1e-6), {}, DRAWS)
        assert others[0].communicate(timeout=60)[0] == "0\n"
        assert ledger.account("tickets").verify().problems == ()


def test_the_file_is_held_for_a_transaction_and_no_longer(path: Path) -> None:
    with (
        path.open("rb") as other,
        closing(database.Database(f"sqlite:///{path}?timeout=0.1")) as opened,
        closing(database.Database(f"sqlite:///{path}")) as same,
    ):
        # a transaction within another, of one thread
        with opened.write(), same.read(), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for transaction in (opened.read, opened.write):
            with pytest.raises(LedgerError, match="held it for too long"), transaction():
                pass
        fcntl.flock(other, fcntl.LOCK_UN)
        with opened.write():
            pass


@pytest.mark.parametrize("closed", [False, True])  # a daemon closes all descriptors before it forks
def test_a_child_opens_the_file_anew(path: Path, closed: bool) -> None:
    """A descriptor that it inherited would share its parent's lock."""
    script = f"""
import os, sys
from dpfewshot.account import file_lock
from dpfewshot.account.database import Database
database = Database(sys.argv[1])
with database.read(): pass
if {closed}:
    os.closerange(3, 100)
if os.fork() == 0:
    os._exit(len(file_lock._opened))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert len(file_lock._opened) == 1
"""
    subprocess.run([sys.executable, "-c", script, f"sqlite:///{path}"], check=True, timeout=60)
