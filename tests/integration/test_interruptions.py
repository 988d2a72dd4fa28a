"""Faults at the worst moments of a run: each costs what it must, and no more (docs/proofs/resuming.md)."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.budget.draws import DrawCounts
from dpfewshot.budget.memory import MemoryAccount
from dpfewshot.cli.generate import _Lines
from dpfewshot.ledger import LedgerAccount
from tests.support import factory
from tests.support.scripts import Sentence

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

GONE = dpf.BackendError("the server is gone", retryable=True)
ONE = factory.demonstration()


class Failing(Sentence):
    """Calls a hook with the number of each private prompt, which may raise."""

    def __init__(self, hook: Callable[[int], object] = lambda _number: None) -> None:
        super().__init__(sure=0.999999)
        self.hook = hook
        self.asked = 0

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            self.asked += 1
            self.hook(self.asked)
        return super().next_token_logprobs(prompts, support)


def fails_at(*numbers: int) -> Failing:
    def hook(number: int) -> None:
        if number in numbers:
            raise GONE

    return Failing(hook)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., dpf.Synthesizer]:
    def made(backend: Any = None, **options: Any) -> dpf.Synthesizer:
        settings: dict[str, Any] = {
            "prompts_per_token": 100,
            "labels": ["refund"],
            "ledger": f"sqlite:///{tmp_path}/budget.db?timeout=0.2",
            "dataset": "tickets",
            "create": True,
        }
        return factory.synthesizer(backend or Failing(), **(settings | options))

    return made


def acts(folder: Path) -> list[object]:
    with dpf.BudgetLedger.open(f"sqlite:///{folder}/budget.db") as ledger:
        account = ledger.account("tickets")
        assert account.verify().problems == ()
        return [row["act"] for row in account.history()]


class Gone(Sentence):
    """Answers nothing, so that a generation fails between its reservation and its first draw."""

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        del prompts, support
        raise GONE


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


# ---- a model that fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 6, 11])
def test_a_failed_call_costs_one_draw_of_one_demonstration_and_no_other(
    make: Any, path: Path, at: int
) -> None:
    """Where a demonstration is one block, the label's last one is lost; all others are made."""
    options: dict[str, Any] = {"resample_every": 8, "shots_per_label": 3, "labels": ["refund", "delivery"]}
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
    options: dict[str, Any] = {"resample_every": 8, "shots_per_label": 3}
    made = make(fails_at(3), **options)
    with pytest.raises(dpf.BackendError):
        made.generate_all(checkpoint=path)
    assert [one.text for one in made.generate_all(checkpoint=path)] == [
        "my parcel", "my parcel is late", "my parcel is late"
    ]  # fmt: skip


def test_the_interrupted_demonstration_resumes_first(make: Any, path: Path) -> None:
    """One label has lost a demonstration, and another one is interrupted in the middle."""
    options: dict[str, Any] = {"resample_every": 8, "shots_per_label": 1, "labels": ["refund", "delivery"]}
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
    assert acts(path.parent) == ["create", "reserve", "charge", "resume", "settle"]


# ---- a ledger that does not answer -----------------------------------------------------------------------


def test_a_ledger_that_is_locked_at_the_first_draw_costs_nothing(make: Any, tmp_path: Path) -> None:
    backend = LocksFirst(tmp_path)
    made = make(backend)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.generate("refund")
    backend.locked[0].unlock()
    assert made.generate("refund").text == "my parcel is late"
    made.close()
    assert acts(tmp_path) == ["create", "reserve", "charge", "settle"]


@pytest.mark.parametrize("resample_every", [1, 8])
def test_nor_does_it_with_a_checkpoint(make: Any, path: Path, resample_every: int) -> None:
    backend = LocksFirst(path.parent)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        make(backend, resample_every=resample_every).generate_all(checkpoint=path)
    backend.locked[0].unlock()
    assert [one.text for one in make(resample_every=resample_every).generate_all(checkpoint=path)] == [
        "my parcel is late"
    ]
    assert acts(path.parent) == ["create", "reserve", "resume", "settle"]


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
    assert made.accountant.spent.epsilon == 0


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
            cancel = LedgerAccount.cancel

            def killed(self: LedgerAccount, entry: int) -> None:
                if after:
                    cancel(self, entry)
                os.kill(os.getpid(), signal.SIGKILL)

            LedgerAccount.cancel = killed  # type: ignore[method-assign]
            make(Gone()).generate_all(checkpoint=path)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
    assert '"returned"' in path.read_text()
    assert len(make().generate_all(checkpoint=path)) == 1
    expected = ["create", "reserve", "cancel", "reserve", "charge", "settle"]
    assert acts(path.parent) == [act for act in expected if after or act != "cancel"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_first_draw_whose_answer_is_lost_costs_one_block(
    make: Any, path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: bool
) -> None:
    draw, calls = LedgerAccount.draw, list[int]()

    def lost(self: LedgerAccount, entry: int, lease: str, part: int) -> None:
        draw(self, entry, lease, part)
        calls.append(entry)
        if len(calls) == 1:
            raise dpf.LedgerError("the connection was lost at COMMIT")

    monkeypatch.setattr(LedgerAccount, "draw", lost)
    made = make(shots_per_label=3)
    with pytest.raises(dpf.LedgerError, match="COMMIT"):
        made.generate_all(checkpoint=path if checkpoint else None)
    assert len(made.generate_all(checkpoint=path if checkpoint else None)) == 3
    assert acts(path.parent).count("reserve") == 1


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
        shots_per_label=2, ledger=MemoryAccount(dpf.PrivacyBudget(4.0, 1e-5)), dataset=None, create=False
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
