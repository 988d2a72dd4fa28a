"""Copies, backups and moved files of a checkpoint: one of them resumes (docs/proofs/resuming.md)."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.draws import DrawCounts, columns
from tests.support.resuming import Dying, interrupted, ledger, path, shared, synthesizer

FIXTURES = (ledger, path, shared)


def test_a_copy_is_refused_and_its_demonstrations_can_be_read(path: Path) -> None:
    synthesizer().generate_all(checkpoint=path)
    copy = path.with_name("copy.jsonl")
    shutil.copy2(path, copy)
    with pytest.raises(dpf.LedgerError, match="is a copy"):
        synthesizer().generate_all(checkpoint=copy)
    assert len(dpf.Demonstrations.from_jsonl(copy)) == 2
    moved = path.rename(path.with_name("moved.jsonl"))
    assert len(synthesizer().generate_all(checkpoint=moved)) == 2


def seems_original(path: Path) -> Path:
    """Write the file's own identity into its first line, as another file system may by chance."""
    first, *rest = path.read_bytes().splitlines(keepends=True)
    status, words = path.stat(), json.loads(first)
    number = isinstance(words["file"], int)
    words["file"] = status.st_ino if number else [status.st_dev, status.st_ino]
    path.write_bytes(b"".join([json.dumps(words).encode() + b"\n", *rest]))
    return path


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system."""
    memory = "/dev/shm"  # noqa: S108 - a folder of its own in it
    with tempfile.TemporaryDirectory(dir=memory if Path(memory).is_dir() else None) as folder:
        yield Path(folder)


def acts(account: dict[str, Any]) -> Counter[object]:
    with dpf.BudgetLedger.open(account["ledger"]) as ledger:
        found = ledger.account(account["dataset"])
        assert found.verify().problems == ()
        return Counter(row["act"] for row in found.history())


def test_one_of_two_copies_on_two_file_systems_resumes(
    path: Path, elsewhere: Path, shared: dict[str, Any]
) -> None:
    interrupted(path, 7, **shared)
    copy = seems_original(Path(shutil.copy(path, elsewhere / "run.jsonl")))
    interrupted(copy, 2, **shared)
    late = synthesizer(**shared)
    with pytest.raises(dpf.LedgerError, match=r"run\.jsonl: entry 1 was .*from the newest.*start anew"):
        late.generate_all(checkpoint=path)
    assert late.set_up.backend.draws == 0
    assert len(synthesizer(**shared).generate_all(checkpoint=copy)) == 2
    with pytest.raises(dpf.LedgerError, match="start anew"):
        late.generate_all(checkpoint=path)
    assert acts(shared) == {"create": 1, "reserve": 2, "charge": 2, "resume": 4, "release": 2, "settle": 2}


def test_a_copy_without_draws_left_pays_for_nothing_more(
    path: Path, elsewhere: Path, shared: dict[str, Any]
) -> None:
    """One draw a demonstration: the interrupted one has no block left, the other label has no entry yet."""
    plan: dict[str, Any] = {"tokens_per_draw": 8, "max_tokens": 8, **shared}
    interrupted(path, 3, **plan)
    copy = seems_original(Path(shutil.copy(path, elsewhere / "run.jsonl")))
    finished = synthesizer(**plan).generate_all(checkpoint=path)
    spent = synthesizer(**plan).spent
    with pytest.raises(dpf.LedgerError, match="start anew"):
        synthesizer(**plan).generate_all(checkpoint=copy)
    assert synthesizer(**plan).spent == spent
    assert synthesizer(**plan).generate_all(checkpoint=path) == finished


def test_a_backup_that_is_restored_again_and_again_resumes_once(path: Path, shared: dict[str, Any]) -> None:
    interrupted(path, 7, **shared)
    backup, drew = path.read_bytes(), []
    for _ in range(20):
        path.write_bytes(backup)  # in place: the file's number stays
        made = synthesizer(Dying(2), **shared)
        with pytest.raises((dpf.LedgerError, dpf.BackendError)):
            made.generate_all(checkpoint=path)
        drew.append(made.set_up.backend.draws)
    assert drew == [2] + [0] * 19
    assert acts(shared)["resume"] == 2  # of each label's reservation one


def test_a_checkpoint_resumes_no_entry_but_its_own(path: Path, tmp_path: Path) -> None:
    """Every ledger numbers its entries from 1."""
    account = {"dataset": "tickets", "ledger": f"sqlite:///{tmp_path / 'first.db'}", "create": True}
    other = account | {"ledger": f"sqlite:///{tmp_path / 'second.db'}"}
    interrupted(path, **account)
    cheap = interrupted(tmp_path / "cheap.jsonl", **other, budget=dpf.PrivacyBudget(0.1, 1e-5))
    with dpf.BudgetLedger.open(other["ledger"]) as ledger:
        ledger.account("tickets").change_budget(dpf.PrivacyBudget(8.0, 1e-3))
    made = synthesizer(**other)
    with pytest.raises(dpf.LedgerError, match=r"second\.db' did not grant the draws.*its own ledger"):
        made.generate_all(checkpoint=path)
    assert made.set_up.backend.draws == 0
    assert cheap.spent.epsilon < 0.11


def test_a_run_whose_checkpoint_was_taken_over_draws_no_more(
    path: Path, elsewhere: Path, shared: dict[str, Any]
) -> None:
    class TakenOver(Dying):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if self.draws == 3 and support is not None and not copy.exists():
                seems_original(Path(shutil.copy(path, copy)))
                others.extend(synthesizer(**shared).generate_all(checkpoint=copy))
            return super().next_token_logprobs(prompts, support)

    copy, others = elsewhere / "run.jsonl", list[dpf.Demonstration]()
    made = synthesizer(TakenOver(), **shared)
    with pytest.raises(dpf.LedgerError, match="draws no more"):
        made.generate_all(checkpoint=path)
    assert made.set_up.backend.draws == 4  # the fourth was counted before
    assert len(others) == 2
    made.close()
    assert acts(shared)["settle"] == 2


def test_blocks_that_a_ledger_forgot_are_not_drawn_again(path: Path, tmp_path: Path) -> None:
    """The checkpoint counts too, and the smaller count holds."""
    account = {"dataset": "tickets", "ledger": f"sqlite:///{tmp_path / 'budget.db'}", "create": True}
    interrupted(path, **account)
    with closing(sqlite3.connect(tmp_path / "budget.db")) as ledger, ledger:
        [(lease, blocks)] = ledger.execute("SELECT lease, blocks FROM dpfewshot_entry").fetchall()
        assert blocks == "[4]"
        forgot = columns(DrawCounts((8,), lease))
        ledger.execute("UPDATE dpfewshot_entry SET blocks = :blocks, draws_hash = :draws_hash", forgot)
    later = synthesizer(**account)
    later.generate_all(checkpoint=path)
    with dpf.BudgetLedger.open(account["ledger"]) as ledger:
        [resumed] = [row for row in ledger.account("tickets").history() if row["act"] == "resume"]
    assert resumed["details"]["lease"]["blocks"] == [4]


def test_without_a_ledger_a_file_of_another_device_is_a_copy(path: Path) -> None:
    synthesizer().generate_all(checkpoint=path)
    first, *rest = path.read_bytes().splitlines(keepends=True)
    words = json.loads(first)
    words["file"][0] += 1
    path.write_bytes(b"".join([json.dumps(words).encode() + b"\n", *rest]))
    with pytest.raises(dpf.LedgerError, match="is a copy, and without a ledger"):
        synthesizer().generate_all(checkpoint=path)


def test_with_a_ledger_a_checkpoint_may_move_to_another_file_system(
    path: Path, elsewhere: Path, ledger: dict[str, str]
) -> None:
    interrupted(path, **ledger)
    moved = Path(shutil.move(path, elsewhere / "moved.jsonl"))
    assert len(synthesizer(**ledger).generate_all(checkpoint=moved)) == 2
    assert len(synthesizer(**ledger).generate_all(checkpoint=moved)) == 2


def test_in_one_process_a_budget_in_memory_finds_a_stale_copy(path: Path) -> None:
    account = Account.in_memory(dpf.PrivacyBudget(100.0, 1e-3))
    interrupted(path, ledger=account)
    backup = path.read_bytes()
    synthesizer(ledger=account).generate_all(checkpoint=path)
    path.write_bytes(backup)
    with pytest.raises(dpf.LedgerError, match="start anew"):
        synthesizer(ledger=account).generate_all(checkpoint=path)
