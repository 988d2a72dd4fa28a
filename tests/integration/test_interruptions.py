"""Faults at the worst moments of a run: each costs what it must, and no more (docs/proofs/resuming.md)."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.draws import DrawCounts
from dpfewshot.cli.generate import _Lines
from tests.support import factory
from tests.support.interruptions import Failing, acts, fails_at, make
from tests.support.resuming import path

FIXTURES = (make, path)
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
ONE = factory.demonstration()


# ---- a model that fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 6, 11])
def test_a_failed_call_costs_one_draw_of_one_demonstration_and_no_other(
    make: Any, path: Path, at: int
) -> None:
    """Where a demonstration is one block, the label's last one is lost; all others are made."""
    options: dict[str, Any] = {"tokens_per_draw": 8, "shots_per_label": 3, "labels": ["refund", "delivery"]}
    made = make(fails_at(at), **options)
    with pytest.raises(dpf.BackendError):
        made.generate_all(checkpoint=path)
    seen: list[dpf.Demonstration] = []
    lost = ["refund", "delivery", "refund"][[1, 6, 11].index(at)]
    for _ in "ab":
        with pytest.raises(dpf.BudgetExceeded, match=f"1 of {lost!r} cannot be made.*The other 5 are in"):
            make(**options).generate_all(checkpoint=path, on_demonstration=seen.append)
    labels = Counter(one.label for one in dpf.Demonstrations.from_jsonl(path))
    assert labels == Counter({"refund": 3, "delivery": 3}) - Counter([lost])
    assert len(seen) == 5 - (at - 1) // 5  # the second time nothing is left to make
    again = make(**options)
    with pytest.raises(dpf.BudgetExceeded):
        again.generate_all(checkpoint=path)
    assert again.set_up.backend.asked == 0


def test_one_that_has_tokens_ends_with_them_and_all_are_there(make: Any, path: Path) -> None:
    options: dict[str, Any] = {"tokens_per_draw": 8, "shots_per_label": 3}
    made = make(fails_at(3), **options)
    with pytest.raises(dpf.BackendError):
        made.generate_all(checkpoint=path)
    assert [one.text for one in made.generate_all(checkpoint=path)] == [
        "my parcel", "my parcel is late", "my parcel is late"
    ]  # fmt: skip


def test_the_interrupted_demonstration_resumes_first(make: Any, path: Path) -> None:
    """One label has lost a demonstration, and another one is interrupted in the middle."""
    options: dict[str, Any] = {"tokens_per_draw": 8, "shots_per_label": 1, "labels": ["refund", "delivery"]}
    for backend in (fails_at(1), fails_at(3)):
        with pytest.raises(dpf.BackendError):
            make(backend, **options).generate_all(checkpoint=path)
    with pytest.raises(dpf.BudgetExceeded, match="1 of 'refund' cannot be made"):
        make(**options).generate_all(checkpoint=path)
    assert [(one.label, one.text) for one in dpf.Demonstrations.from_jsonl(path)] == [
        ("delivery", "my parcel")
    ]


# ---- close() on another thread ---------------------------------------------------------------------------


def test_a_run_that_is_closed_meanwhile_resumes_later(make: Any, path: Path) -> None:
    inside = threading.Event()

    def hook(number: int) -> None:
        if number == 2:
            inside.set()
            time.sleep(0.1)

    options: dict[str, Any] = {"shots_per_label": 3}
    made, refused = make(Failing(hook), **options), list[BaseException]()

    def run() -> None:
        try:
            made.generate_all(checkpoint=path)
        except dpf.BudgetExceeded as error:
            refused.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(10)
    made.close()
    thread.join()
    assert "closed" in str(refused)
    assert len(make(**options).generate_all(checkpoint=path)) == 3
    assert acts(path.parent) == [
        "create",
        "reserve",
        "charge",
        "release",
        "resume",
        "release",
        "release",
        "settle",
    ]


# ---- a full disk -----------------------------------------------------------------------------------------


def full_at(monkeypatch: pytest.MonkeyPatch, part: bytes, *, function: str = "write") -> None:
    """The disk is full, or breaks, at the checkpoint's next line with these words."""
    write, fsync, broken = os.write, os.fsync, [False]

    def failing_write(file: int, data: bytes) -> int:
        if part in data:
            broken[0] = True
            if function == "write":
                return write(file, data[:9])
        return write(file, data)

    def failing_fsync(file: int) -> None:
        if broken[0] and function == "fsync":
            raise OSError(5, "Input/output error")
        fsync(file)

    monkeypatch.setattr(os, "write", failing_write)
    monkeypatch.setattr(os, "fsync", failing_fsync)


@pytest.mark.parametrize("function", ["write", "fsync"])
def test_a_reservation_that_the_checkpoint_cannot_name_goes_back(
    make: Any, path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    with monkeypatch.context() as patch:
        full_at(patch, b'"reserved"', function=function)
        with pytest.raises(dpf.LedgerError, match="cannot be written"):
            make().generate_all(checkpoint=path)
    assert acts(path.parent) == ["create", "reserve", "cancel"]
    assert len(make().generate_all(checkpoint=path)) == 1


def test_what_a_finished_run_cannot_close_nobody_draws_uncounted(
    make: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(
        shots_per_label=2, ledger=Account.in_memory(dpf.PrivacyBudget(4.0, 1e-5)), dataset=None, create=False
    )
    with monkeypatch.context() as patch:
        full_at(patch, b'"blocks": [0]')
        with pytest.raises(dpf.LedgerError, match="cannot be written"):
            made.generate_all(checkpoint=path)
    with pytest.raises(dpf.BudgetExceeded):
        made.generate("refund", max_tokens=1)


def test_half_an_output_line_is_taken_back(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, whole[1]))
    try:
        with pytest.raises(dpf.DPFewShotError, match="standard output"), _Lines(str(path)) as lines:
            lines.write(ONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "my parcel is late" in capsys.readouterr().out
    with _Lines(str(path)) as lines:
        lines.write(ONE)
        lines.complete([ONE, ONE])
    assert dpf.Demonstrations.from_jsonl(path).items == (ONE, ONE)


def test_a_file_that_does_not_end_a_line_gets_its_end(path: Path) -> None:
    path.write_text(json.dumps(ONE.as_line()))
    with _Lines(str(path)) as lines:
        lines.complete([ONE, ONE])
    assert dpf.Demonstrations.from_jsonl(path).items == (ONE, ONE)


# ---- forks -----------------------------------------------------------------------------------------------


def test_a_child_writes_into_nobodys_file(make: Any, path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    made, children = make(shots_per_label=2), list[int]()

    def fork(_one: dpf.Demonstration) -> None:
        if not children:
            children.append(os.fork())
            if children == [0]:
                for _ in range(20):  # among them is the number that the checkpoint had
                    os.open(precious, os.O_RDWR | os.O_APPEND)

    status = 1
    try:
        released: Sequence[object] = made.generate_all(checkpoint=path, on_demonstration=fork)
    except dpf.LedgerError as error:
        status = 3 if "parent" in str(error) else 1
    finally:
        if children == [0]:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 3
    assert len(released) == 2
    assert precious.read_text() == "precious\n"
    assert acts(tmp_path).count("reserve") == 1


# ---- malformed checkpoints -------------------------------------------------------------------------------
DRAW = '{"checkpoint": "draw", "part": 0, "of": 0, "label": "refund"}\n'


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r'"blocks": \[8\]', '"blocks": [-5]'),
        (r'"blocks": \[8\]', '"blocks": [8.5]'),
        (r'"blocks": \[8\]', '"blocks": [true]'),
        (r'"blocks": \[8\]', '"blocks": [8, 8]'),
        (r'"blocks": \[8\]', '"blocks": []'),
        (r'"blocks": \[8\]', '"blocks": [800]'),
        (r'"part": 0', '"part": 99'),
        (r'"part": 0', '"part": -1'),
        (r'"part": 0', '"part": "0"'),
        (r'"of": 0', '"of": -1'),
        (r'"of": 0', '"of": 1'),
        (r'"entry": 1', '"entry": "1"'),
        (r'"entry": 1', '"entry": [1]'),
        (r'"entry": 1', '"entry": 1000000000000000000000000'),
        (r'"lease": "\w+"', '"lease": 5'),
        (r'"lease": "\w+"', '"lease": ["5"]'),
        (r'"label": "refund"', '"label": "nobody"'),
        (r'"label": "refund"', '"label": 7'),
        (r'"id": \d+', '"id": 1000000000'),
        (r'"id": \d+', '"id": -1'),
        (r"$", "[" * 100_000 + "\n"),
        (r"$", '{"checkpoint": "token", "id": 1}\n' * 50),
        (r"$", '{"checkpoint": "returned", "part": 3}\n'),
    ],
)
def test_a_malformed_line_is_refused_and_the_account_is_as_it_was(
    make: Any, path: Path, pattern: str, instead: str
) -> None:
    with pytest.raises(dpf.BackendError):
        make(fails_at(3)).generate_all(checkpoint=path)
    before, text = acts(path.parent), path.read_text()
    changed = text + instead if pattern == "$" else re.sub(pattern, instead, text)
    path.write_text(changed)
    assert path.read_text() != text
    with pytest.raises(dpf.LedgerError, match=re.escape(str(path))):
        make().generate_all(checkpoint=path)
    assert acts(path.parent) == before


def test_more_draws_than_planned_leave_none(make: Any, path: Path) -> None:
    with pytest.raises(dpf.BackendError):
        make(fails_at(3)).generate_all(checkpoint=path)
    path.write_text(path.read_text() + DRAW * 20)
    assert [one.text for one in make().generate_all(checkpoint=path)] == ["my parcel"]


def test_a_count_below_nothing_is_refused_by_every_account() -> None:
    with pytest.raises(dpf.LedgerError, match="-5 draws"):
        DrawCounts((8,), "lease").resumed(1, ["lease"], DrawCounts((-5,), "new"))


def test_a_pipe_is_no_checkpoint(make: Any, path: Path) -> None:
    os.mkfifo(path)
    for each in (path, Path("/dev/null")):
        with pytest.raises(dpf.LedgerError, match="is not a regular file"):
            make().generate_all(checkpoint=each)
