"""`dpfewshot evaluate`: a table for people, JSON for programs, results that a later run resumes from."""

import json
import sys
from pathlib import Path

import pytest

from dpfewshot.cli.application import run

MODULE = """
import dpfewshot as dpf

WORDS = ["sun", "rain", "glad", "sad", "\\n"]


def make():
    def next_token(prompt):
        if prompt[-1] in (0, 1):
            return [0.1, 0.1, 0.1, 0.1, 0.6]
        last = next((token for token in reversed(prompt) if token in (0, 1)), None)
        return {0: [0.1, 0.1, 0.6, 0.1, 0.1], 1: [0.1, 0.1, 0.1, 0.6, 0.1]}.get(last, [0.2] * 5)

    return dpf.backends.Scripted(vocabulary=WORDS, next_token=next_token)
"""
TASK = """
name = "mood"
instruction = "Write a note."
label_field = "Mood"
text_field = "Note"
labels = ["glad", "sad"]
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "weather_model.py").write_text(MODULE)
    (tmp_path / "mood.toml").write_text(TASK)
    rows = [{"text": "sun", "label": "glad"}, {"text": "rain", "label": "sad"}]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 20))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("weather_model", None)
    shared = ["evaluate", "--task", "mood.toml", "--records", "records.jsonl", "--test", "test.jsonl"]
    sizes = [
        "--mechanism",
        "gaussian",
        "--repetitions",
        "2",
        "-M",
        "5",
        "--max-tokens",
        "2",
        "--top-k",
        "all",
    ]
    return [*shared, "--backend", "weather_model:make", *sizes]


def test_a_table_with_every_baseline_says_that_it_is_private(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--epsilon", "1", "--shots", "2"]) == 0
    told = capsys.readouterr()
    names = [line[:20].strip() for line in told.out.splitlines()[1:]]
    assert names == ["zero-shot", "instruction-only", "non-private sample", "gaussian", "gaussian"]
    assert "100.0%" in told.out
    assert "do not publish" in told.err


def test_json_carries_intervals_and_whether_it_is_private(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--epsilon", "1", "--epsilon", "inf", "--shots", "1", "--shots", "2", "--no-baselines", "--json"]
    assert run([*command, *asked, "--public-data", "--quiet"]) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert told.err == ""
    assert document["confidential"] is False
    found = [(one["epsilon"], one["shots"], one["repetitions"]) for one in document["summaries"]]
    assert found == [(1.0, 1, 2), (None, 1, 2), (1.0, 2, 2), (None, 2, 2)]
    assert all(0 <= one["low"] <= one["accuracy"] <= one["high"] <= 1 for one in document["summaries"])


def test_a_second_run_adds_what_is_new_and_repeats_nothing(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [*command, "--no-baselines", "--output", "results.jsonl"]
    assert run([*kept, "--epsilon", "1"]) == 0
    first = Path("results.jsonl").read_text()
    assert run([*kept, "--epsilon", "1", "--epsilon", "4"]) == 0
    second = Path("results.jsonl").read_text()
    assert second.startswith(first)
    assert len(second.splitlines()) == 2 * len(first.splitlines()) == 4
    assert "rain" not in second
    capsys.readouterr()


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        (["--shots", "0"], "the baselines include zero-shot"),
        (["--items", "0"], "--items must be at least 1"),
        (["--repetitions", "0"], "--repetitions must be at least 1"),
        (["--user-model", "other.gguf"], "--user-model needs --backend llama-cpp"),
        (["--epsilon", "0"], "epsilon must be a positive number"),
        (["--epsilon", "nan"], "neither a finite number nor the word inf"),
        (["--label", "private-label"], "no such label"),
        (["--test", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(
    command: list[str], capsys: pytest.CaptureFixture[str], extra: list[str], complaint: str
) -> None:
    assert run([*command, *extra]) == 2
    told = capsys.readouterr()
    assert complaint in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
