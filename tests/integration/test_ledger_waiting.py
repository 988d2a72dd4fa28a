"""Who waits for whom: on SQLite in the order of asking, on PostgreSQL for the same account alone."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event

from dpfewshot.account.database import Database
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.file_lock import locked
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.sql import SqlTransaction
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS

if TYPE_CHECKING:
    from collections.abc import Callable

# newer Pythons warn of what is tested here: a fork beside threads
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
COST = PrivacySpend(0.1, 1e-8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "budget.db").touch()
    return tmp_path / "budget.db"


def waiting(file: Path) -> int:
    """How many requests for the file the kernel holds back."""
    lines = Path("/proc/locks").read_text().splitlines()
    return sum("->" in line and f":{file.stat().st_ino} " in line for line in lines)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interrupt_within_a_statement_leaves_no_lock(file: Path) -> None:
    """Its traceback keeps the cursor alive, and with it what SQLite holds for it."""
    with closing(Database(f"sqlite:///{file}")) as database, closing(sqlite3.connect(file)) as another:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        def write() -> None:
            with database.write() as connection:
                connection.exec_driver_sql("CREATE TABLE one (row)")
                event.listen(connection, "after_cursor_execute", interrupt)
                connection.exec_driver_sql("SELECT count(*) FROM one")

        with pytest.raises(KeyboardInterrupt) as interrupted:
            write()
        another.execute("PRAGMA busy_timeout = 0")
        another.execute("BEGIN IMMEDIATE")
        assert interrupted.tb is not None


def test_processes_get_the_file_in_the_order_in_which_they_asked(file: Path) -> None:
    served = file.with_name("served")
    children = []
    with file.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        for number in range(6):
            child = os.fork()
            if child == 0:
                try:
                    with locked(file, 30.0, create=False), served.open("a") as order:
                        order.write(str(number))
                finally:
                    os._exit(0)
            children.append(child)
            until(lambda asked=number + 1: waiting(file) == asked)  # type: ignore[misc]
        fcntl.flock(holder, fcntl.LOCK_UN)  # the children inherited the descriptor
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert served.read_text() == "012345"


def test_a_request_that_nobody_wants_any_more_gives_the_file_away(file: Path) -> None:
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LedgerError, match="held it for too long"), locked(file, 0.05, create=False):
            pass
        fcntl.flock(other, fcntl.LOCK_UN)
        until(lambda: not waiting(file))
        time.sleep(0.05)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_next_call_takes_the_request_over(file: Path) -> None:
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LedgerError, match="held it for too long"), locked(file, 0.05, create=False):
            pass
        release = threading.Timer(0.2, fcntl.flock, (other, fcntl.LOCK_UN))
        release.start()
        with locked(file, 30.0, create=False):
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.05)  # the first request does not give away what the second one has
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_accounts_do_not_wait_for_each_other(postgresql_url: str) -> None:
    with ExitStack() as stack:
        ledgers = [stack.enter_context(BudgetLedger.open(postgresql_url)) for _ in range(2)]
        budget = PrivacyBudget(1.0, 1e-5)
        busy, free = (one.create(name, budget) for one, name in zip(ledgers, "ab", strict=True))
        other = stack.enter_context(closing(Database(postgresql_url)))
        late = threading.Thread(target=busy.reserve, args=(None, COST, {}, DRAWS))
        with other.write() as connection:
            SqlTransaction(connection, busy._store.settings).lock()  # noqa: SLF001 - locks it
            late.start()
            entry = free.reserve("trec: Number", COST, {}, DrawCounts(4, "lease")).entry
            free.draw(entry, "lease")
            free.settle(entry, "lease")
            free.change_budget(PrivacyBudget(2.0, 1e-5))
            assert free.verify().ok
            assert late.is_alive()  # the same account waits
        late.join()
        assert busy.entries == 1


def test_an_interrupt_that_keeps_the_connection_holds_up_no_later_call(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within SQLAlchemy, between the pool's only connection and whoever would give it back."""
    take, taken = Engine.raw_connection, list[Any]()

    def interrupted(self: Engine) -> object:
        taken.append(take(self))
        raise KeyboardInterrupt

    with BudgetLedger.open(postgresql_url) as ledger:
        account = ledger.create("tickets", PrivacyBudget(1.0, 1e-5))
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "raw_connection", interrupted)
            with pytest.raises(KeyboardInterrupt):
                account.reserve(None, COST, {}, DRAWS)
        asked = time.monotonic()
        assert account.spent == PrivacySpend(0.0, 0.0)
        assert time.monotonic() - asked < 15, "it waited as for another thread"
        taken[0].invalidate()
