"""`dpfewshot evaluate`: a table for people, JSON for programs, results that a later run resumes from."""

import json
from pathlib import Path

import pytest

import dpfewshot as dpf
from tests.cli.conftest import write_rows
from tests.support.commands import Run

WORDS = ["sun", "rain", "glad", "sad", "\n", *(f"<{number}>" for number in range(100))]


def weather() -> dpf.backends.Scripted:
    """A model that calls a note with rain in it sad, and one with sun glad."""

    def next_token(prompt: list[int]) -> list[float]:
        last = next((token for token in reversed(prompt) if token in (0, 1)), None)
        likeliest = 4 if prompt[-1] in (0, 1) else 2 if last == 0 else 3
        return [0.6 if token == likeliest else 0.4 / (len(WORDS) - 1) for token in range(len(WORDS))]

    return dpf.backends.Scripted(vocabulary=WORDS, next_token=next_token)


EVALUATE = (
    *("evaluate", "--task", "mood.toml", "--records", "records.jsonl", "--test", "test.jsonl"),
    *("--backend", f"{__name__}:weather", "--mechanism", "gaussian", "-M", "5", "--max-tokens", "2"),
)


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mood.toml").write_text(
        'name = "mood"\ninstruction = "Write a note."\nlabel_field = "Mood"\ntext_field = "Note"\n'
        'labels = ["glad", "sad"]\n'
    )
    rows = [{"text": "sun", "label": "glad"}, {"text": "rain", "label": "sad"}]
    write_rows("records.jsonl", rows * 20)
    write_rows("test.jsonl", rows)


def test_a_table_with_every_baseline_says_that_it_is_confidential(command: Run) -> None:
    status, out, err = command(*EVALUATE, "--epsilon", "1", "--shots", "2")
    assert status == 0
    names = [line[:20].strip() for line in out.splitlines()[1:]]
    assert names == ["zero-shot", "instruction-only", "non-private sample", "gaussian", "gaussian"]
    assert "100.0%" in out
    assert "do not publish" in err


def test_without_a_mechanism_the_planners_is_measured(command: Run) -> None:
    given = [one for one in EVALUATE if one not in {"--mechanism", "gaussian", "-M", "5"}]
    for further, name in (((), "default"), (("--mechanism", "word-histogram"), "word-histogram")):
        status, out, err = command(*given, "--epsilon", "8", "--shots", "2", *further)
        assert (status, name in out) == (0, True), err


def test_json_says_whether_it_is_confidential_and_a_second_run_repeats_nothing(command: Run) -> None:
    words = ("--output", "results.jsonl", "--json", "--set", "public_data=true", "--quiet", "--shots", "1")
    kept = (*EVALUATE, *words)
    status, out, err = command(*kept, "--epsilon", "1")
    document, first = json.loads(out), Path("results.jsonl").read_text()
    assert (status, err, document["confidential"]) == (0, "", False)
    ours = [one for one in document["summaries"] if "gaussian" in one.values()]
    assert [(one["epsilon"], one["shots"], one["repetitions"]) for one in ours] == [(1.0, 1, 3), (None, 1, 3)]
    assert all(0 <= one["low"] <= one["accuracy"] <= one["high"] <= 1 for one in document["summaries"])
    assert command(*kept, "--epsilon", "1", "--epsilon", "4")[0] == 0
    second = Path("results.jsonl").read_text()
    assert second.startswith(first)
    assert len(second.splitlines()) == len(first.splitlines()) + 3
    assert "rain" not in second


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        (("--shots", "0"), "--shots"),
        (("--prompts-per-draw", "-1"), "--prompts-per-draw must be a whole number of at least 1"),
        (("--set", "user_model=other.gguf"), "user_model needs --backend llama-cpp"),
        (("--epsilon", "0"), "epsilon must be a positive number"),
        (("--test", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(
    command: Run, extra: tuple[str, ...], complaint: str
) -> None:
    status, out, err = command(*EVALUATE, *extra)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert complaint in err
