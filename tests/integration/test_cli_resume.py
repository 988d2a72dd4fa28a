"""`dpfewshot generate --resume`: a checkpoint beside the output, with a scripted language model."""

import json
from pathlib import Path
from typing import Any

import pytest

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
        "--mechanism", "gaussian", "--prompts-per-token", "100", "--resample-every", "1", "--max-tokens", "8",
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
    assert (tmp_path / "demos.jsonl.checkpoint").exists()
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


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_reads_whether_a_run_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    resumed = [*arguments, "--output", str(tmp_path / "demos.jsonl"), "--resume"]
    for answers, says in ((7, "starting a new run"), (1000, "resuming the run in")):
        generate(monkeypatch, resumed, answers)
        assert (says in capsys.readouterr().err) == terminal
