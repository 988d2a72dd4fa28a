"""`dpfewshot generate --resume`: a checkpoint beside the output, with a scripted language model."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpfewshot.account.account import Account
from dpfewshot.cli import options
from dpfewshot.cli.application import run
from tests.support.scripts import Sentence, tickets

TASK = """
name = "tickets"
instruction = "Write a ticket."
label_field = "Kind"
text_field = "Ticket"
labels = ["refund", "delivery"]
"""


class Dying(Sentence):
    """Is gone after so many answers to private prompts."""

    def __init__(self, answers: int) -> None:
        super().__init__(sure=0.999999)
        self.answers = answers

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            self.answers -= 1
            if self.answers < 0:
                raise KeyboardInterrupt
        return super().next_token_logprobs(prompts, support)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    records, task = tmp_path / "records.jsonl", tmp_path / "task.toml"
    records.write_text(
        "".join(json.dumps({"text": one.text, "label": one.label}) + "\n" for one in tickets())
    )
    task.write_text(TASK)
    return [
        "generate", "--task", str(task), "--records", str(records), "--epsilon", "4", "--delta", "1e-5",
        "--mechanism", "gaussian", "--prompts-per-draw", "100", "--tokens-per-draw", "1", "--max-tokens", "8",
        "--top-k", "all",
        "--ledger", f"sqlite:///{tmp_path / 'budget.db'}", "--dataset", "tickets", "--create",
    ]  # fmt: skip


def generate(monkeypatch: pytest.MonkeyPatch, arguments: list[str], answers: int = 1000) -> int:
    monkeypatch.setattr(options, "open_backend", lambda *_, **__: Dying(answers))
    return run(arguments)


def test_an_interrupted_command_resumes(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "demos.jsonl"
    resumed = [*arguments, "--output", str(output), "--resume"]
    assert generate(monkeypatch, resumed, answers=7) == 130
    assert len(output.read_text().splitlines()) == 1
    for _ in "ab":
        assert generate(monkeypatch, resumed) == 0
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert [(line["label"], line["text"]) for line in lines] == [
            ("refund", "my parcel is late"),
            ("delivery", "my parcel is late"),
        ]
    (tmp_path / "demos.jsonl.checkpoint").unlink()
    # without the checkpoint another plan is asked for, which the budget does not allow
    assert generate(monkeypatch, [*arguments, "--output", str(output)]) == 3


def test_a_line_that_is_only_in_the_checkpoint_is_written(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "demos.jsonl"
    resumed = [*arguments, "--output", str(output), "--resume", "--json"]
    assert generate(monkeypatch, resumed) == 0
    whole = output.read_text().splitlines(keepends=True)
    output.write_text("a line of somebody else\n" + whole[0])
    assert generate(monkeypatch, resumed) == 0
    assert output.read_text() == "a line of somebody else\n" + "".join(whole)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["demonstrations"] == [json.loads(line) for line in whole]


def test_resuming_needs_an_output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--resume"]) == 2
    assert "--resume needs --output" in capsys.readouterr().err


def test_on_a_ledger_with_an_output_a_run_resumes_unasked(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interruption pays for nothing twice and says so; the run after it makes what is missing."""
    output, checkpoint = tmp_path / "demos.jsonl", tmp_path / "demos.jsonl.checkpoint"
    resumable = [*arguments, "--output", str(output)]
    assert generate(monkeypatch, resumable, answers=3) == 130
    told = capsys.readouterr().err
    assert f"this run released no demonstration, and {output} is as it was before. The same" in told
    assert not output.exists()
    assert generate(monkeypatch, resumable, answers=6) == 130
    told = capsys.readouterr().err
    assert f"resuming the run in {checkpoint}" in told
    assert f"interrupted: 1 of this run's 2 demonstrations is in {output}. The same command makes" in told
    assert "makes the others" in told
    assert generate(monkeypatch, resumable) == 0
    assert [json.loads(line)["label"] for line in output.read_text().splitlines()] == ["refund", "delivery"]
    assert not checkpoint.exists()  # another plan may follow
    assert generate(monkeypatch, resumable) == 3
    assert not checkpoint.exists()
    assert len(output.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("with_output", "with_ledger", "says"),
    [
        (False, True, "run's 2 demonstrations is printed. This run cannot be resumed, and what labels that"),
        (True, False, "demos.jsonl. This run cannot be resumed, and its budget ended with it: with --ledger"),
    ],
)
def test_an_interruption_says_what_cannot_be_resumed(
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    with_output: bool,
    with_ledger: bool,
    says: str,
) -> None:
    words = arguments if with_ledger else arguments[: arguments.index("--ledger")]
    words += ["--output", str(tmp_path / "demos.jsonl")] if with_output else []
    assert generate(monkeypatch, words, answers=7) == 130
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("*.checkpoint"))


def test_a_second_run_leaves_the_checkpoint_of_the_first_alone(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first waits for the ledger, so its checkpoint holds no reservation yet."""
    reserve = Account.reserve
    statuses: list[int] = []

    def waits(*given: Any) -> Any:
        if not statuses:
            statuses.append(2)
            statuses.append(run(resumable))
        return reserve(*given)

    resumable = [*arguments, "--output", str(tmp_path / "demos.jsonl")]
    monkeypatch.setattr(Account, "reserve", waits)
    assert generate(monkeypatch, resumable) == 0
    assert statuses == [2, 2]
    assert "another run holds this checkpoint" in capsys.readouterr().err
    assert len((tmp_path / "demos.jsonl").read_text().splitlines()) == 2
