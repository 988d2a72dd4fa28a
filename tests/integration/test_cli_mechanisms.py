"""Mechanisms and draws on the command line: every mechanism generates, and what does not fit is refused."""

import json
from pathlib import Path

import pytest

from dpfewshot.cli.application import run
from dpfewshot.cli.options import MECHANISM_NAMES

SECRET = "swordfish"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Sixty questions about places, none of them anybody's."""
    path = tmp_path / "records.jsonl"
    lines = [{"text": f"Where is town number {i} of {SECRET} ?", "label": "Location"} for i in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def arguments(records: Path, *further: str) -> list[str]:
    plan = ["--task", "trec", "--records", str(records), "--label", "Location", "--epsilon", "4"]
    size = ["--prompts-per-draw", "5", "--max-tokens", "3", "--record-token-cap", "12"]
    return [*plan, "--delta", "1e-3", *size, *further]


@pytest.mark.model
@pytest.mark.parametrize("mechanism", MECHANISM_NAMES)
def test_every_mechanism_generates(records: Path, capfd: pytest.CaptureFixture[str], mechanism: str) -> None:
    assert run(["generate", *arguments(records, "--mechanism", mechanism)]) == 0
    captured = capfd.readouterr()
    line = json.loads(captured.out)
    assert line["mechanism"] == mechanism
    assert line["certified"] is True
    assert 0 < line["epsilon"] <= 4
    assert SECRET not in captured.err


@pytest.mark.model
@pytest.mark.parametrize(
    ("further", "relation", "private"),
    [
        (["--sampling", "fixed-size"], "replace-one", True),
        (["--sampling", "fixed-size", "--accounting", "published"], "replace-one", False),
        (["--disjoint-parts", "6", "--shots", "6", "--tokens-per-draw", "3"], "zero-out", True),
        (["--temperature", "1", "--top-p", "0.9"], "zero-out", True),
    ],
)
def test_draws_and_decoding(
    records: Path, capfd: pytest.CaptureFixture[str], further: list[str], relation: str, private: bool
) -> None:
    assert run(["generate", *arguments(records, *further)]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(lines) == (6 if "--shots" in further else 1)
    for line in lines:
        assert (line["relation"], line["certified"]) == (relation, private)
        assert (line["epsilon"] is None) is not private


@pytest.mark.model
def test_private_predictions_clip_follows_from_a_temperature(
    records: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its clip of 10 by default would leave the budget nothing to decide; both given are still refused."""
    solved = arguments(records, "--mechanism", "private-prediction", "--temperature", "2")
    assert run(["generate", *solved]) == 0
    assert json.loads(capfd.readouterr().out)["epsilon"] <= 4
    assert run(["generate", *solved, "--clip", "10"]) == 2
    assert "would fix epsilon" in capfd.readouterr().err


@pytest.mark.model
def test_plan_compares_every_mechanism_and_marks_one(
    records: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compare = arguments(records, "--compare", "--target-noise", "0.2", "--probe-seconds", "0.2")
    assert run(["plan", *compare, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["comparison"]
    assert {row["mechanism"] for row in rows} == set(MECHANISM_NAMES)
    assert {row["tokens_per_draw"] for row in rows} == {1, 3}
    assert all(row["epsilon"] <= 4 and row["delta"] == 1e-3 for row in rows)
    (cheapest,) = (row for row in rows if row["cheapest"])
    meeting = [row for row in rows if row["meets_target"]]
    assert cheapest["prompt_tokens"] == min(row["prompt_tokens"] for row in meeting)
    assert all(row["noise_on_mean"] <= 0.2 for row in meeting)
    assert any(row["prompts_per_draw"] > 5 for row in meeting), "M was raised somewhere"
    assert run(["plan", *compare]) == 0
    assert "\n* " in capfd.readouterr().out


@pytest.mark.parametrize(
    ("further", "says"),
    [
        (["--mechanism", "oracle"], "oracle"),
        (["--mechanism", "report-noisy-max", "--top-p", "0.9"], "the winner alone"),
        (["--mechanism", "invisible-ink", "--clip", "3"], "its settings are"),
        (["--temperature", "-1"], "temperature"),
        (["--sampling", "bernoulli"], "bernoulli"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    records: Path, capfd: pytest.CaptureFixture[str], further: list[str], says: str
) -> None:
    assert run(["generate", *arguments(records, *further)]) == 2
    captured = capfd.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
