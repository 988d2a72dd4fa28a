"""Faults of a ledger's processes, files and servers, all real. `make soak` runs more rounds."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from bench.ledger_rounds import BOUNDARIES
from bench.postgresql import Server
from dpfewshot.account.account import Account
from dpfewshot.mechanisms import Gaussian
from dpfewshot.values import PrivacySpend
from tests.support import factory
from tests.support.accounts import DRAWS, charged
from tests.support.processes import environment
from tests.support.scripts import TASK

ROUNDS = 2 * len(BOUNDARIES)  # at least 20
DEADLINE = 30.0
COST = PrivacySpend(0.25, 1e-6)

KILLS = """
import json, sys
from bench.ledger_rounds import kill_rounds
print(json.dumps(kill_rounds(sys.argv[1], int(sys.argv[2]), forgetful=sys.argv[3] == "forgetful")))
"""

RACE = """
import json, sys
from bench.ledger_rounds import race
print(json.dumps(race(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 20)))
"""

FILLS = """
import resource, sys
import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.values import PrivacySpend
from tests.support.accounts import charged

account = dpf.BudgetLedger.open(sys.argv[1]).account("tickets")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    while True:
        charged(account, None, PrivacySpend(0.001, 0.0), {"note": "x" * 500})
        print("charged", flush=True)
except dpf.LedgerError as error:
    print(error)
"""


def in_a_process(script: str, *arguments: object) -> str:
    """What a script prints; pytest itself does not fork."""
    finished = subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return finished.stdout


def opened(url: str) -> Account:
    return dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(8.0, 1e-5))


def synthesizer(account: Account, **settings: Any) -> dpf.Synthesizer:
    budget = dpf.PrivacyBudget(epsilon=2.0, delta=1e-6)
    return factory.synthesizer(
        budget=budget, account=account, labels=["refund"], **({"max_tokens": 40} | settings)
    )


@contextmanager
def before_each_token(act: Callable[[int], None]) -> Iterator[list[int]]:
    """Calls `act` with the number of released tokens before each further one; yields a list as long."""
    real, released = Gaussian.start, []

    class Interrupted:
        def __init__(self, release: Any) -> None:
            self._release = release
            self.support = release.support

        def token(self, *numbers: Any) -> Any:
            act(len(released))
            released.append(1)
            return self._release.token(*numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gaussian, "start", lambda *words: Interrupted(real(*words)))
        yield released


# processes


def test_whoever_is_killed_has_recorded_what_it_released(ledger_url: str) -> None:
    figures = json.loads(in_a_process(KILLS, ledger_url, ROUNDS, "honest"))
    assert figures["rounds"] == ROUNDS
    assert figures["rounds that released"] >= ROUNDS * 4 // len(BOUNDARIES)
    assert figures["overdrawn"] == figures["broken histories"] == 0


def test_control_a_ledger_that_forgets_is_seen(tmp_path: Path) -> None:
    figures = json.loads(in_a_process(KILLS, f"sqlite:///{tmp_path}/budget.db", 3, "forgetful"))
    assert figures["overdrawn"] == figures["rounds that released"] == 3


def test_of_a_race_for_the_last_exactly_what_fits_succeeds(ledger_url: str) -> None:
    found = json.loads(in_a_process(RACE, ledger_url, 8, 4))
    assert found["ended well"] == 8
    assert found["outcomes"] == {"charged": 20, "refused": 44}
    assert (found["spent"], found["entries"]) == (2.0, 20)
    assert found["history agrees"]
    assert found["slowest"] < DEADLINE


# a server that goes


def test_a_server_that_dies_during_a_demonstration_costs_no_privacy(
    postgresql_server: Server, postgresql_url: str
) -> None:
    account = opened(postgresql_url)
    made = synthesizer(account, max_tokens=15)  # few enough draws that each is charged by itself

    def crash(released: int) -> None:
        if released == 2:
            postgresql_server.crash()

    with before_each_token(crash) as released, pytest.raises(dpf.LedgerError):
        made.generate("refund")
    assert len(released) == 3  # the third draw was counted before the crash, the fourth was not
    with before_each_token(lambda _: None) as released:
        with pytest.raises(dpf.LedgerError):
            account.reserve(None, COST, {}, DRAWS)
        postgresql_server.start()
        assert made.spent == made.plan.strata[0].spend
        charged(account, None, COST)
    assert released == []
    assert account.verify().ok


def test_a_server_that_dies_between_reserve_and_charge_lets_nothing_out(
    postgresql_server: Server, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = opened(postgresql_url)
    made = synthesizer(account)
    reserve = account.reserve

    def reserve_and_crash(*words: Any) -> int:
        entry = reserve(*words)
        postgresql_server.crash()
        return entry

    monkeypatch.setattr(account, "reserve", reserve_and_crash)
    with before_each_token(lambda _: None) as released, pytest.raises(dpf.LedgerError):
        made.generate("refund")
    postgresql_server.start()
    assert released == []
    monkeypatch.undo()
    assert made.spent == made.plan.strata[0].spend  # costs budget, never privacy
    with before_each_token(lambda _: None) as released:
        made.generate("refund")  # the connection is a new one
    assert released
    assert account.verify().ok


# a file that goes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.db"


@pytest.fixture
def account(path: Path) -> Account:
    return opened(f"sqlite:///{path}")


def lock(path: Path) -> Callable[[], None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other.close


def truncate(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


FAULTS = {
    "locked": lock,
    "truncated by half": truncate(0.5),
    "truncated by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": truncate(0.0),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_without_a_ledger_nothing_is_released(path: Path, fault: Callable[[Path], Any]) -> None:
    made = synthesizer(opened(f"sqlite:///{path}?timeout=0.2"))
    undo = fault(path)
    with before_each_token(lambda _: None) as released, pytest.raises(dpf.LedgerError):
        made.generate("refund")
    assert released == []
    if undo is not None:
        undo()
        assert made.generate("refund").certified


def test_nothing_is_drawn_while_the_ledger_is_locked(path: Path) -> None:
    account = opened(f"sqlite:///{path}?timeout=0.2")
    made = synthesizer(account, max_tokens=15)  # few enough draws that each is charged by itself
    undo: list[Callable[[], None]] = []
    with (
        before_each_token(lambda released: released == 1 and undo.append(lock(path))) as released,
        pytest.raises(dpf.LedgerError, match="try again later"),
    ):
        made.generate("refund")
    assert len(released) == 2  # the second draw was counted before the lock, the third was not
    undo[0]()
    assert made.generate("refund", max_tokens=2).token_count == 2
    assert account.verify().ok


def test_a_ledger_that_locks_after_the_last_draw_loses_no_demonstration(path: Path) -> None:
    account = opened(f"sqlite:///{path}?timeout=0.2")
    made = synthesizer(account, tokens_per_draw=40)
    undo: list[Callable[[], None]] = []
    with (
        before_each_token(lambda released: released == 1 and undo.append(lock(path))) as released,
        pytest.raises(dpf.LedgerError, match="ask for it again, which draws nothing"),
    ):
        made.generate("refund")  # its hash cannot be recorded, and no text is out without it
    undo[0]()
    drawn = len(released)
    assert made.generate("refund").token_count == len(released) == drawn
    assert [row["act"] for row in account.history()][-4:] == ["reserve", "charge", "release", "settle"]
    assert account.verify().ok


@pytest.mark.parametrize("lost", [dpf.LedgerError("the answer was lost"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("next_label", ["refund", "delivery"])
def test_a_release_whose_answer_is_lost_is_recorded_once_and_returned(
    path: Path, lost: BaseException, next_label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, answers = Account.record_release, iter([lost])

    def losing(self: Account, *given: Any) -> None:
        record(self, *given)
        for error in answers:
            raise error

    monkeypatch.setattr(Account, "record_release", losing)
    account = opened(f"sqlite:///{path}")
    free = dataclasses.replace(TASK, labels=None)  # both labels are of one stratum
    made = factory.synthesizer(task=free, labels=["refund", "delivery"], account=account, shots_per_label=2)
    with pytest.raises(type(lost)):
        made.generate("refund", max_tokens=3)
    late = [made.generate(next_label, max_tokens=6), made.generate("refund")]
    assert next(one.token_count for one in late if one.label == "refund") == 3
    assert account.verify().ok
    made.close()
    assert account.verify().ok
    hashes = [row["details"]["line_sha256"] for row in account.history() if row["act"] == "release"]
    assert len(hashes) == len(set(hashes)) == 2


@pytest.mark.parametrize("room", [4096, 65536])
def test_a_full_disk_stops_everything_and_what_was_charged_stays(
    account: Account, path: Path, room: int
) -> None:
    *lines, refusal = in_a_process(FILLS, f"sqlite:///{path}", path.stat().st_size + room).splitlines()
    assert set(lines) <= {"charged"}
    assert "disk" in refusal
    assert round(account.spent.epsilon / 0.001) in (len(lines), len(lines) + 1)
    assert account.verify().ok
    charged(account, None, COST)  # with room again it goes on
    assert account.verify().ok


def test_a_ledger_that_is_another_file_now_is_read_anew(account: Account, path: Path) -> None:
    account.reserve(None, COST, {}, DRAWS)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(path.with_name("copy"))) as copy:
        source.backup(copy)
    account.reserve(None, COST, {}, DRAWS)
    path.with_name("copy").rename(path)
    assert account.spent == COST  # what the copy holds, and not what another connection remembers
    assert account.verify().ok
