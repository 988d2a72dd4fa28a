"""The command line: exit status 0, 2 or 3, and one line that says what is wrong and quotes no record."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpfewshot import __version__
from tests.support.commands import Run

SECRET = "swordfish"
LOADING, PLANNING = "loading the model", "planning"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Sixty questions of the TREC task, none of them anybody's."""
    path = tmp_path / "records.jsonl"
    labels = ("Location", "Number", "Person")
    lines = [{"text": f"Where is town number {i} of {SECRET} ?", "label": labels[i % 3]} for i in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def generate(records: Path, *further: object) -> list[object]:
    plan = [
        "--task",
        "trec",
        "--records",
        records,
        "--label",
        "Location",
        "--epsilon",
        "4",
        "--delta",
        "1e-3",
    ]
    return ["generate", *plan, "--prompts-per-draw", "5", "--max-tokens", "4", *further]


def one_line(status: int, out: str, err: str, *stages: str) -> str:
    """What is wrong, after the stages that were begun."""
    assert status == 2
    assert out == ""
    assert SECRET not in err
    for stage in stages:
        assert err.startswith(f"{stage}\n")
        err = err.removeprefix(f"{stage}\n")
    assert err.startswith("dpfewshot: ")
    assert err.count("\n") == 1
    return err


# ---- bad input that is found before the model is loaded --------------------------------------------------


def content(kind: str) -> bytes:
    good = json.dumps({"text": f"hello {SECRET}", "label": "Location"}).encode() + b"\n"
    return {
        "empty": b"",
        "broken": good * 2 + b'{"text": "swordfish' + b"\n",
        "latin-1": good + '{"text": "caf\xe9 swordfish", "label": "Location"}\n'.encode("latin-1"),
        "no label": good + json.dumps({"text": SECRET}).encode(),
        "blank": good * 3 + json.dumps({"text": "  ", "label": "Location"}).encode(),
        "other label": good + json.dumps({"text": SECRET, "label": f"love of {SECRET}"}).encode(),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("empty", "no records"),
        ("broken", "line 3"),
        ("latin-1", "line 2"),
        ("no label", "line 2"),
        ("blank", "line 4"),
    ],
)
def test_bad_records(command: Run, tmp_path: Path, kind: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content(kind))
    assert says in one_line(*command(*generate(path)))


def test_missing_and_broken_files(command: Run, tmp_path: Path, records: Path) -> None:
    assert "nowhere" in one_line(*command(*generate(tmp_path / "nowhere.jsonl")))
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(records.read_bytes())[:-20])
    assert "gz" in one_line(*command(*generate(broken)))
    one_line(*command(*generate(records, "--text", "body")))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--epsilon", "0"),
        ("--epsilon", "-1"),
        ("--epsilon", "nan"),
        ("--delta", "0"),
        ("--delta", "1"),
        ("--delta", "2"),
        ("--top-k", "many"),
        ("--task", "nosuchtask"),
        ("--task", "nowhere.toml"),
        ("--epsilon", "much"),
        ("--backend", "crystal-ball"),
        ("--population", "Location"),
        ("--nosuchoption", "1"),
    ],
)
def test_bad_options(command: Run, records: Path, option: str, value: str) -> None:
    one_line(*command(*generate(records, option, value)))


def test_model_that_is_missing_or_no_model(command: Run, records: Path, tmp_path: Path) -> None:
    nowhere = command(*generate(records, "--model", tmp_path / "nowhere.gguf"))
    assert "nowhere.gguf" in one_line(*nowhere, LOADING)
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    assert "GGUF" in one_line(*command(*generate(records, "--model", text)), LOADING)


def test_output_that_cannot_be_written_is_found_before_anything_is_spent(command: Run, records: Path) -> None:
    assert "cannot write" in one_line(*command(*generate(records, "--output", "/nowhere/at/all.jsonl")))


# ---- with the packaged model -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("further", "says"),
    [
        (["--prompts-per-draw", "21", "--holdout", "0"], "--prompts-per-draw 20 would fit"),
        (["--prompts-per-draw", "20"], "holdout of 0.2 (0 uses all): --prompts-per-draw 16 would fit"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--label", "Colour"], "label"),
        (["--label", "Entity"], "Entity"),
        (["--record-token-cap", "0"], "--record-token-cap"),
    ],
)
def test_plans_that_cannot_be_honoured(command: Run, records: Path, further: list[str], says: str) -> None:
    assert says in one_line(*command(*generate(records, *further)))


@pytest.mark.model
def test_a_top_k_above_the_vocabulary(command: Run, records: Path) -> None:
    assert "--top-k" in one_line(*command(*generate(records, "--top-k", "1000000")), LOADING, PLANNING)


def test_a_label_that_the_task_does_not_have(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(content("other label"))
    assert "record 2" in one_line(*command(*generate(path)))


@pytest.mark.model
def test_generate_appends_lines_and_says_what_they_cost(command: Run, records: Path, tmp_path: Path) -> None:
    output = tmp_path / "demos.jsonl"
    for _ in "ab":
        status, out, err = command(*generate(records, "--output", output))
        assert status == 0
        assert out == ""
        assert SECRET not in err
        assert "nothing adds up what several runs" in err
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert set(line) == {
            "text",
            "label",
            "epsilon",
            "delta",
            "relation",
            "certified",
            "mechanism",
            "tokens",
            "certificate",
        }
        assert line["label"] == "Location"
        assert 3.5 < line["epsilon"] <= 4
        assert line["delta"] == 1e-3
        assert line["certified"] is True
        assert 1 <= line["tokens"] <= 4


@pytest.mark.model
def test_generate_json_and_no_privacy(command: Run, records: Path) -> None:
    status, out, err = command(*generate(records, "--epsilon", "inf", "--json"))
    document = json.loads(out)
    assert status == 0
    assert "nothing adds up" not in err
    assert document["demonstrations"][0]["certified"] is False
    assert document["demonstrations"][0]["epsilon"] is None
    assert document["plan"]["epsilon"] is None


@pytest.mark.model
def test_a_spent_ledger_is_refused_with_status_3_and_nothing_is_generated(
    command: Run, records: Path, tmp_path: Path
) -> None:
    url, output = f"sqlite:///{tmp_path / 'budget.db'}", tmp_path / "demos.jsonl"
    account = ["--ledger", url, "--dataset", "towns"]
    assert command("ledger", "create", *account, "--epsilon", "5", "--delta", "1e-2")[0] == 0
    status, _, err = command(*generate(records, *account, "--output", output))
    assert status == 0
    assert "nothing adds up" not in err
    status, out, err = command(*generate(records, *account, "--output", output))
    assert status == 3
    assert out == ""
    assert "budget" in err
    assert len(output.read_text().splitlines()) == 1
    _, out, _ = command("ledger", "show", *account, "--json")
    summary = json.loads(out)
    assert set(summary) == {"dataset", "budget", "spent", "entries", "rule", "plans_left", "strata"}
    assert summary["budget"] == {"epsilon": 5.0, "delta": 1e-2}
    assert 3.5 < summary["spent"]["epsilon"] <= 4
    assert summary["entries"] == 1


@pytest.mark.model
def test_plan_spends_nothing_and_shows_everything(command: Run, records: Path) -> None:
    arguments = ["--task", "trec", "--records", records, "--epsilon", "4", "--label", "Location"]
    size = ["--prompts-per-draw", "5", "--max-tokens", "4", "--probe-seconds", "0.2"]
    status, out, _ = command("plan", *arguments, *size, "--json")
    plan = json.loads(out)
    assert status == 0
    assert plan["sampling_rate"] == 5 / (0.8 * 20)  # a fifth of the 20 is kept for `choose`
    assert plan["steps"] == 4
    assert plan["epsilon"] <= 4
    assert plan["delta"] == 1e-5
    assert plan["estimated_seconds"] > 0
    assert plan["prompt_tokens"] > 0
    status, out, _ = command("plan", *arguments, *size)
    assert status == 0
    assert "noise on mean" in out


@pytest.mark.model
@pytest.mark.soak  # four minutes beside another process; the suite that it runs has tests of its own
def test_doctor_finds_all_well_here(command: Run) -> None:
    status, out, _ = command("doctor", "--json")
    report = json.loads(out)
    assert status == 0, report
    assert report["well"] is True
    assert {"python", "exact core", "accounting", "model"} <= {check["check"] for check in report["checks"]}


def test_doctor_says_what_is_wrong(command: Run) -> None:
    status, out, _ = command("doctor", "--model", "nowhere.gguf")
    assert status == 2
    assert "FAIL model" in out


@pytest.mark.parametrize(
    "name",
    [
        "",
        "demo",
        "plan",
        "generate",
        "labels",
        "calibrate",
        "choose",
        "evaluate",
        "report",
        "doctor",
        "ledger",
    ]
    + [f"ledger {name}" for name in ("create", "show", "history", "verify", "export", "change-budget")],
)
def test_help_has_an_example(command: Run, name: str) -> None:
    status, out, _ = command(*name.split(), "--help")
    assert status == 0
    assert "Example:" in out
    assert "dpfewshot" in out


def test_version(command: Run) -> None:
    assert __version__ in command("--version")[1]


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dpfewshot", "plan", "--task"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("dpfewshot: ")


def test_help_and_import_load_nothing_heavy() -> None:
    script = (
        "import sys, dpfewshot.cli.application as cli; cli.run(['--help']); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
