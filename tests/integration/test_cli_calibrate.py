"""`dpfewshot calibrate`: the file that it writes, what it pays, and `choose --calibration`."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.cli.application import run
from tests.support.colours import Colours, shown

TASK = """
name = "colours"
instruction = "Name the colour."
label_field = "Colour"
text_field = "Thing"
labels = ["red", "blue", "light blue"]
"""
THINGS = {"sky": "light blue", "rose": "red", "sea": "blue"}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(TASK)
    rows = [{"text": f"{name} {i}", "label": label} for i in range(500) for name, label in THINGS.items()]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dpf.Demonstrations([shown("rose", "red")]).to_jsonl("demos.jsonl")
    return tmp_path


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(name: str, *further: object) -> tuple[int, str, str]:
        inputs = ("--task", "task.toml", "--records", "records.jsonl")
        model = ("--backend", "tests.support.colours:Colours", "--holdout", 0)
        status = run([str(word) for word in (name, *inputs, *model, "--epsilon", 2, *further)])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call


def test_the_file_beside_the_demonstrations_calibrates_a_classifier(command: Run) -> None:
    status, out, err = command("calibrate", "--demonstrations", "demos.jsonl", "--quiet")
    assert (status, err) == (0, "")
    assert out.startswith("demos.calibration.json: in nats, with noise of 0.0")
    assert "neighbours zero-out)" in out
    released = icl.Calibration.from_json("demos.calibration.json")
    assert released.certified
    task, made = dpf.Task.from_file("task.toml"), dpf.Demonstrations.from_jsonl("demos.jsonl")
    classifier = icl.Classifier(task, Colours(), made, calibration=released)
    assert classifier.predict(list(THINGS)) == list(THINGS.values())


def test_json_is_what_the_file_holds(command: Run) -> None:
    status, out, _ = command("calibrate", "--json", "--output", "bias.json")
    assert status == 0
    assert json.loads(out) == json.loads(Path("bias.json").read_text())
    assert json.loads(out)["labels"] == ["red", "blue", "light blue"]


def test_an_account_pays_and_refuses(command: Run) -> None:
    account = ("--ledger", "sqlite:///budget.db", "--dataset", "things")
    assert command("calibrate", *account, "--create")[0] == 0
    status, _, err = command("calibrate", *account, "--output", "second.json")
    assert status == 3
    assert err.count("\n") == 1
    assert not Path("second.json").exists()


@pytest.mark.parametrize(
    ("further", "says"),
    [
        (("--output", "demos.jsonl"), "exists: name a new file"),
        (("--dataset", "things"), "--dataset needs --ledger"),
        (("--epsilon", "inf"), "must be finite"),
        (("--holdout", "1"), "holdout"),
    ],
)
def test_bad_input_is_one_line(command: Run, further: tuple[str, ...], says: str) -> None:
    status, out, err = command("calibrate", *further)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_full_disk_under_the_output_loses_no_file(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("calibrate", "--output", "bias.json")[0] == 0
    candidates = ("--candidates", "demos.jsonl", "--no-without")
    for name, path, further in (("calibrate", "again.json", ()), ("choose", "chosen.jsonl", candidates)):
        with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails too
            monkeypatch.setattr("sys.stdout", full)
            assert command(name, *further, "--output", path)[0] != 0
        assert Path(path).stat().st_size > 0


def test_a_calibrated_prompt_is_a_candidate(command: Run) -> None:
    assert command("calibrate", "--demonstrations", "demos.jsonl")[0] == 0
    candidates = ("--candidates", "demos.jsonl", "--calibration", "demos.calibration.json")
    status, out, _ = command("choose", *candidates, "--epsilon", 8, "--json")
    assert status == 0
    names = {"demos.jsonl", "demos.jsonl with demos.calibration.json", "no demonstrations"}
    choice = dpf.Choice.from_dict(json.loads(out))
    assert choice.candidate.name in names
    assert (choice.index == 2) == (choice.candidate.calibration is not None)


def test_a_calibration_of_another_prompt_is_none_for_the_candidates(command: Run) -> None:
    assert command("calibrate", "--output", "bias.json")[0] == 0
    candidates = ("--candidates", "demos.jsonl", "--no-without", "--calibration", "bias.json")
    status, _, err = command("choose", *candidates)
    assert status == 2
    assert "bias.json: was released for another prompt" in err


@pytest.mark.parametrize(
    ("content", "says"), [("{", "is not JSON"), ("[]", "not an object"), ("{}", "has no")]
)
def test_a_file_that_is_no_calibration_is_named(content: str, says: str) -> None:
    Path("bias.json").write_text(content)
    with pytest.raises(dpf.InvalidPlan, match=f"bias.json: .*{says}"):
        icl.Calibration.from_json("bias.json")
    with pytest.raises(dpf.InvalidPlan, match=r"missing.json: cannot be read"):
        icl.Calibration.from_json("missing.json")
