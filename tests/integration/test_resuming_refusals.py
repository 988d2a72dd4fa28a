"""Checkpoints that a run refuses, and what a checkpoint holds (docs/proofs/resuming.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.demonstrations import COLUMNS
from tests.support.resuming import Dying, ledger, path, synthesizer
from tests.support.scripts import TASK

FIXTURES = (ledger, path)


@pytest.mark.parametrize(
    "options",
    [
        {"budget": dpf.PrivacyBudget(3.0, 1e-5)},
        {"budget": dpf.NO_PRIVACY},
        {"labels": ["refund"]},
        {"max_tokens": 7},
        {"shots_per_label": 2},
        {"mechanism": dpf.mechanisms.Gaussian(top_k=7)},
        {"mechanism": dpf.mechanisms.ReportNoisyMax(top_k=8)},
        {"population": {"refund": 200, "delivery": 200}},
    ],
)
def test_another_plan_is_refused(path: Path, options: dict[str, Any]) -> None:
    synthesizer().generate_all(checkpoint=path)
    with pytest.raises(dpf.InvalidPlan, match="another plan"):
        synthesizer(**options).generate_all(checkpoint=path)


def test_another_account_is_refused(path: Path, ledger: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(3), **ledger).generate_all(checkpoint=path)
    with pytest.raises(dpf.InvalidPlan, match="another plan"):
        synthesizer(**(ledger | {"dataset": "other"})).generate_all(checkpoint=path)
    new = {"ledger": f"sqlite:///{tmp_path / 'new.db'}", "create": True}
    with pytest.raises(dpf.LedgerError, match="did not grant the draws"):
        synthesizer(**(ledger | new)).generate_all(checkpoint=path)


# ---- further refusals ------------------------------------------------------------------------------------


def test_two_runs_cannot_hold_one_checkpoint(path: Path) -> None:
    first, refused = synthesizer(), []

    def meanwhile(_one: dpf.Demonstration) -> None:
        for made, where in ((synthesizer(), path), (first, path), (first, path.with_name("other.jsonl"))):
            with pytest.raises(dpf.LedgerError, match="another run") as caught:
                made.generate_all(checkpoint=where)
            refused.append(caught.value)

    first.generate_all(checkpoint=path, on_demonstration=meanwhile)
    assert len(refused) == 6
    assert len(synthesizer().generate_all(checkpoint=path)) == 2


def test_what_is_left_is_the_checkpoints(path: Path) -> None:
    account = Account.in_memory(dpf.PrivacyBudget(100.0, 1e-3))
    made = synthesizer(ledger=account)
    made.generate_all(checkpoint=path)
    spent = account.spent
    with pytest.raises(dpf.BudgetExceeded):
        made.generate("refund", max_tokens=3)
    made.generate_all(checkpoint=path)
    assert account.spent == spent


def test_a_synthesizer_that_reserved_cannot_take_up_another_reservation(path: Path) -> None:
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(3)).generate_all(checkpoint=path)
    made = synthesizer()
    made.generate("refund")
    with pytest.raises(dpf.InvalidPlan, match="make a new one"):
        made.generate_all(checkpoint=path)


@pytest.mark.parametrize(
    "content",
    [b"\n", b"my notes", b"{}\n", b"[]\n", b'{"text": "a"}\n', b"\xff\n", b'{"checkpoint": "run"}\n'],
)
def test_what_is_no_checkpoint_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(dpf.LedgerError, match="line 1 is not a checkpoint's"):
        synthesizer().generate_all(checkpoint=path)
    assert path.read_bytes() == content


def test_a_line_that_was_not_written_to_its_end_did_not_happen(path: Path) -> None:
    path.write_bytes(b'{"checkpoint": "run", "ver')
    first = synthesizer().generate_all(checkpoint=path)
    with path.open("ab") as file:
        file.write(b'{"checkpoint": "dra')
    assert synthesizer().generate_all(checkpoint=path) == first
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_damaged_line_is_named(path: Path) -> None:
    synthesizer().generate_all(checkpoint=path)
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("r+b") as file:
        file.write(b"".join([*lines[:3], b'{"checkpoint": "draw"}\n', *lines[4:]]))
        file.truncate()
    with pytest.raises(dpf.LedgerError, match="line 4"):
        synthesizer().generate_all(checkpoint=path)


def test_a_folder_that_is_not_there(path: Path) -> None:
    made = synthesizer()
    with pytest.raises(dpf.LedgerError, match="cannot be opened"):
        made.generate_all(checkpoint=path / "nowhere" / "run.jsonl")
    assert made.spent.epsilon == 0


def test_nothing_is_drawn_that_is_not_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Dying()
    made = synthesizer(backend)
    written = os.write

    def full(file: int, data: bytes) -> int:
        if b'"draw"' in data and backend.draws == 3:
            written(file, data[:9])
            raise OSError(28, "No space left on device")
        return written(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(dpf.LedgerError, match="No space left"):
            made.generate_all(checkpoint=path)
    assert backend.draws == 3
    assert [one.text for one in synthesizer().generate_all(checkpoint=path)] == ["my parcel is late"] * 2


def test_what_is_stored_is_released_text_and_public_facts(path: Path) -> None:
    """Another data set of the same size gives the same kinds of lines, and none of either's text."""
    texts = [f"swordfish {number}" for number in range(400)]
    records = [dpf.Record(text, str(TASK.labels[i % 2])) for i, text in enumerate(texts)]  # type: ignore[index]
    synthesizer(records=records).generate_all(checkpoint=path)
    assert "swordfish" not in path.read_text()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {frozenset(line) for line in lines} == {
        frozenset({"checkpoint", "version", "plan", "file"}),
        frozenset({"checkpoint", "part", "entry", "lease", "blocks"}),
        frozenset({"checkpoint", "part", "of", "label"}),
        frozenset({"checkpoint", "part", "id"}),
        frozenset({*COLUMNS, "certificate"}),
    }
