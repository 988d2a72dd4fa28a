"""Faults at the worst moments of a run: each costs what it must, and no more (docs/proofs/resuming.md)."""

import json
import os
import resource
import signal
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import Executor
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.cli.lines import Lines
from tests.support import factory
from tests.support.processes import in_child
from tests.support.resuming import GONE, acts, draws_left, fails_at, fails_once, make
from tests.support.scripts import Hooked

FIXTURES = (make,)
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
ONE = factory.demonstration()


@pytest.mark.parametrize("at", [1, 6, 11])
def test_a_failed_call_costs_one_draw_of_one_demonstration_and_no_other(
    make: Any, tmp_path: Path, at: int
) -> None:
    """Where a demonstration is one draw, the label's last one is lost; all others are made."""
    options: dict[str, Any] = {"tokens_per_draw": 8, "shots_per_label": 3, "labels": ["refund", "delivery"]}
    with make(fails_at(at), **options) as made, pytest.raises(dpf.BackendError):
        made.generate_all()
    lost = {1: "refund", 6: "delivery", 11: "refund"}[at]
    for _ in "ab":
        seen: list[dpf.Demonstration] = []
        with (
            make(**options) as again,
            pytest.raises(dpf.BudgetExceeded, match=f"1 of {lost!r} cannot be made.*The other 5 are rel"),
        ):
            again.generate_all(resume=True, on_demonstration=seen.append)
        labels = Counter(one.label for one in seen)
        assert labels == Counter({"refund": 3, "delivery": 3}) - Counter([lost])
    assert again.set_up.backend.asked == 0  # the second time nothing is left to make
    assert draws_left(f"sqlite:///{tmp_path}/budget.db") == [0, 0]


def test_a_label_asked_for_again_goes_on_with_what_was_interrupted(make: Any) -> None:
    made = make(fails_at(3))
    with pytest.raises(dpf.BackendError):
        made.generate("refund")
    assert made.generate("refund").text == "my parcel is late"
    assert made.set_up.backend.asked == 6  # five tokens, and the draw that failed
    with pytest.raises(dpf.BudgetExceeded, match="only 2 tokens remain"):
        made.generate("refund")


def test_one_that_has_tokens_ends_with_them_and_all_are_there(make: Any) -> None:
    made = make(fails_at(3), tokens_per_draw=8, shots_per_label=3)
    with pytest.raises(dpf.BackendError):
        made.generate_all()
    texts = made.generate_all(resume=True)
    assert [(one.token_count, one.finished) for one in texts] == [(2, False), (5, True), (5, True)]
    assert {one.text for one in texts} == {"my parcel is late"}  # the first was completed without records


def test_a_run_that_is_closed_meanwhile_resumes_later(make: Any, tmp_path: Path, threads: Executor) -> None:
    inside = threading.Event()

    def hook(number: int) -> None:
        if number == 2:
            inside.set()
            time.sleep(0.1)

    made = make(Hooked(hook), shots_per_label=3)
    run = threads.submit(made.generate_all)
    assert inside.wait(10)
    made.close()
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        run.result(10)
    with make(shots_per_label=3) as later:
        assert len(later.generate_all(resume=True)) == 3
    assert acts(tmp_path) == [
        "create", "reserve", "charge", "release", "resume", "release", "release", "settle"
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["fork", "fork and back"])
def test_a_forked_child_has_a_run_of_its_own(make: Any, tmp_path: Path, way: str) -> None:
    made = make(fails_at(3), budget=dpf.PrivacyBudget(1.0, 1e-6))
    with dpf.BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db") as ledger:
        ledger.account("tickets").change_budget(dpf.PrivacyBudget(4.0, 1e-5))
    with pytest.raises(dpf.BackendError):
        made.generate_all()
    assert "my parcel is late" in in_child(made.generate_all)
    if way == "fork and back":
        assert [one.text for one in made.generate_all(resume=True)] == ["my parcel is late"]
    assert acts(tmp_path).count("reserve") == 2


class Locks(Hooked):
    """From its first public answer on, another process holds the ledger; it may fail then, too."""

    def __init__(self, folder: Path, *, fails: bool = False) -> None:
        super().__init__()
        self.folder, self.fails = folder, fails
        self.other: sqlite3.Connection | None = None

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        answer = super().next_token_logprobs(prompts, support)
        if support is None and self.other is None:
            self.other = sqlite3.connect(
                f"{self.folder}/budget.db", isolation_level=None, check_same_thread=False
            )
            self.other.execute("BEGIN IMMEDIATE")
            if self.fails:
                raise GONE
        return answer

    def unlock(self) -> None:
        assert self.other is not None
        self.other.execute("ROLLBACK")
        self.other.close()


@pytest.mark.parametrize("tokens_per_draw", [1, 8])
def test_a_ledger_that_is_locked_at_the_first_draw_costs_nothing(
    make: Any, tmp_path: Path, tokens_per_draw: int
) -> None:
    backend = Locks(tmp_path)
    made = make(backend, tokens_per_draw=tokens_per_draw)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.generate_all()
    backend.unlock()
    assert [one.text for one in made.generate_all(resume=True)] == ["my parcel is late"]
    made.close()
    assert acts(tmp_path) == ["create", "reserve", "charge", "release", "settle"]


def test_closing_after_it_gives_everything_back_once_the_ledger_answers(make: Any, tmp_path: Path) -> None:
    backend = Locks(tmp_path)
    made = make(backend)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.generate("refund")
    made.close()  # the charge may have been made, and its answer lost: a later run finds out
    backend.unlock()
    assert made.spent.epsilon > 0
    with make() as later:
        assert len(later.generate_all(resume=True)) == 1
    assert acts(tmp_path).count("reserve") == 1


def test_what_cannot_be_given_back_is_kept(make: Any, tmp_path: Path) -> None:
    """The model fails before the first draw, and the ledger when the reservation goes back."""
    backend = Locks(tmp_path, fails=True)
    made = make(backend)
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.generate_all()
    with pytest.raises(dpf.LedgerError, match="held it for too long"):
        made.close()
    backend.unlock()
    made.close()
    assert acts(tmp_path) == ["create", "reserve", "cancel"]
    assert made.spent.epsilon == 0


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_it_gives_back_a_later_run_pays_once(make: Any, tmp_path: Path, after: bool) -> None:
    """Killed before or after the account's commit."""
    make(budget=dpf.PrivacyBudget(20.0, 1e-3))  # makes the account

    class Gone(Hooked):
        def next_token_logprobs(self, *_: Any) -> Any:
            raise GONE

    if os.fork() == 0:
        try:
            cancel = Account.cancel

            def killed(self: Account, entry: int) -> None:
                if after:
                    cancel(self, entry)
                os.kill(os.getpid(), signal.SIGKILL)

            Account.cancel = killed  # type: ignore[method-assign]
            make(Gone()).generate_all()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
    with make() as later:
        assert len(later.generate_all(resume=True)) == 1
    between = ["cancel", "reserve", "charge"] if after else ["resume"]
    assert acts(tmp_path) == ["create", "reserve", *between, "release", "settle"]


def test_a_first_draw_whose_answer_is_lost_costs_one_draw(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_once(monkeypatch, "draw", after=True)
    made = make(shots_per_label=3)
    with pytest.raises(dpf.LedgerError, match="COMMIT"):
        made.generate_all()
    assert len(made.generate_all(resume=True)) == 3
    assert acts(tmp_path).count("reserve") == 1


def test_a_release_that_the_ledger_cannot_record_waits_and_costs_nothing_more(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_once(monkeypatch, "record_release", after=False)
    made = make()
    with pytest.raises(dpf.LedgerError, match="ask for it again, which draws nothing"):
        made.generate("refund")
    asked = made.set_up.backend.asked
    assert made.generate("refund").text == "my parcel is late"
    assert made.set_up.backend.asked == asked
    assert acts(tmp_path).count("release") == 1


def test_half_an_output_line_is_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    whole, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, whole[1]))
    try:
        with pytest.raises(dpf.DPFewShotError, match="standard output"), Lines(str(path)) as lines:
            lines.write(ONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "my parcel is late" in capsys.readouterr().out
    with Lines(str(path)) as lines:
        lines.write(ONE, again=True)
    with Lines(str(path)) as lines:
        for _ in "ab":
            lines.write(ONE, again=True)  # the file has one of the two
    assert dpf.Demonstrations.from_jsonl(path).items == (ONE, ONE)


def test_a_line_that_another_process_wrote_behind_half_of_ours_is_kept(tmp_path: Path) -> None:
    path, theirs = tmp_path / "out.jsonl", json.dumps(ONE.as_line())

    class Full(FileIO):
        def write(self, data: Any) -> int:
            half = super().write(data[:9])
            with path.open("a") as another:
                another.write(f"\n{theirs}\n")
            return half

    with Full(path, "a") as file, Lines(None) as lines:
        lines.output, lines._file = str(path), file  # noqa: SLF001
        with pytest.raises(dpf.DPFewShotError, match="disk is full"):
            lines.write(ONE)
    assert theirs in path.read_text().split("\n")


def test_lines_follow_a_file_that_an_editor_saves_in_its_place(tmp_path: Path) -> None:
    path, saved = tmp_path / "out.jsonl", tmp_path / "saved"
    with Lines(str(path)) as lines:
        lines.write(ONE)
        saved.write_text(path.read_text())
        saved.replace(path)
        lines.write(ONE)
        assert dpf.Demonstrations.from_jsonl(path).items == (ONE, ONE)
        path.unlink()
        lines.write(ONE)
    assert dpf.Demonstrations.from_jsonl(path).items == (ONE,)


def test_a_line_goes_to_the_output_if_another_process_has_the_file_by_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.jsonl"
    with Lines(str(path)) as lines:
        path.unlink()
        with Lines(str(path), alone=True), pytest.raises(dpf.DPFewShotError, match="another process writes"):
            lines.write(ONE)
    assert "my parcel is late" in capsys.readouterr().out


def test_a_file_that_does_not_end_a_line_gets_its_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(ONE.as_line()))
    with Lines(str(path)) as lines:
        lines.write(ONE)
    assert dpf.Demonstrations.from_jsonl(path).items == (ONE, ONE)
