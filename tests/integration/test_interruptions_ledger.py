"""A ledger that does not answer in the middle of a run (docs/proofs/resuming.md)."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from tests.support.interruptions import GONE, Failing, Gone, acts, make
from tests.support.resuming import path

FIXTURES = (make, path)
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Locked:
    """The ledger, locked by another process from a backend's public question on."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(
            f"{folder}/budget.db", isolation_level=None, check_same_thread=False
        )

    def lock(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def unlock(self) -> None:
        self.connection.execute("ROLLBACK")
        self.connection.close()


class LocksFirst(Failing):
    """Locks the ledger after the reservation and before the first draw."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.locked = folder, list[Locked]()

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is None and not self.locked:
            self.locked.append(Locked(self.folder))
            self.locked[0].lock()
        return super().next_token_logprobs(prompts, support)


def test_a_ledger_that_is_locked_at_the_first_draw_costs_nothing(make: Any, tmp_path: Path) -> None:
    backend = LocksFirst(tmp_path)
    made = make(backend)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.generate("refund")
    backend.locked[0].unlock()
    assert made.generate("refund").text == "my parcel is late"
    made.close()
    assert acts(tmp_path) == ["create", "reserve", "charge", "release", "settle"]


@pytest.mark.parametrize("tokens_per_draw", [1, 8])
def test_nor_does_it_with_a_checkpoint(make: Any, path: Path, tokens_per_draw: int) -> None:
    backend = LocksFirst(path.parent)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        make(backend, tokens_per_draw=tokens_per_draw).generate_all(checkpoint=path)
    backend.locked[0].unlock()
    assert [one.text for one in make(tokens_per_draw=tokens_per_draw).generate_all(checkpoint=path)] == [
        "my parcel is late"
    ]
    assert acts(path.parent) == ["create", "reserve", "resume", "release", "settle"]


def test_closing_after_it_gives_everything_back_once_the_ledger_answers(make: Any, tmp_path: Path) -> None:
    backend = LocksFirst(tmp_path)
    made = make(backend)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.generate("refund")
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.close()
    backend.locked[0].unlock()
    made.close()
    assert acts(tmp_path) == ["create", "reserve", "cancel"]
    assert made.spent.epsilon == 0


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_cannot_be_given_back_is_kept(make: Any, path: Path, checkpoint: bool) -> None:
    """The model fails before the first draw, and the ledger when the reservation goes back."""

    class Unreachable(LocksFirst):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            first = not self.locked
            answer = super().next_token_logprobs(prompts, support)
            if first:
                raise GONE
            return answer

    backend = Unreachable(path.parent)
    made = make(backend)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.generate_all(checkpoint=path if checkpoint else None)
    backend.locked[0].unlock()
    later = make() if checkpoint else made
    assert len(later.generate_all(checkpoint=path if checkpoint else None)) == 1
    assert acts(path.parent).count("reserve") == 1


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_it_gives_back_a_later_run_reserves_anew(make: Any, path: Path, after: bool) -> None:
    """Killed before or after the account's commit: nobody goes on with what may have been given back."""
    make(budget=dpf.PrivacyBudget(20.0, 1e-3))  # makes the account
    if os.fork() == 0:
        try:
            cancel = Account.cancel

            def killed(self: Account, entry: int) -> None:
                if after:
                    cancel(self, entry)
                os.kill(os.getpid(), signal.SIGKILL)

            Account.cancel = killed  # type: ignore[method-assign]
            make(Gone()).generate_all(checkpoint=path)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
    assert '"returned"' in path.read_text()
    assert len(make().generate_all(checkpoint=path)) == 1
    expected = ["create", "reserve", "cancel", "reserve", "charge", "release", "settle"]
    assert acts(path.parent) == [act for act in expected if after or act != "cancel"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_first_draw_whose_answer_is_lost_costs_one_block(
    make: Any, path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: bool
) -> None:
    draw, calls = Account.draw, list[int]()

    def lost(self: Account, entry: int, lease: str, part: int, count: int) -> int:
        drawn = draw(self, entry, lease, part, count)
        calls.append(entry)
        if len(calls) == 1:
            raise dpf.LedgerError("the connection was lost at COMMIT")
        return drawn

    monkeypatch.setattr(Account, "draw", lost)
    made = make(shots_per_label=3)
    with pytest.raises(dpf.LedgerError, match="COMMIT"):
        made.generate_all(checkpoint=path if checkpoint else None)
    assert len(made.generate_all(checkpoint=path if checkpoint else None)) == 3
    assert acts(path.parent).count("reserve") == 1
