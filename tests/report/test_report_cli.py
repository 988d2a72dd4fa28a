"""`dpfewshot report`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfewshot.cli.application import run
from tests.support.report_samples import SECRET, account, files

SENTENCE = (
    "with these demonstrations 84 ± 2 %, without 71 ± 2 % "
    "(ε = 0.2 for the choice, δ = 0, neighbours zero-out)"
)

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run(["report", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@pytest.mark.slow
def test_everything_at_once(command: Command, tmp_path: Path) -> None:
    account(tmp_path)
    given = [word for name, path in files(tmp_path).items() for word in (f"--{name}", str(path))]
    given += [
        "--ledger",
        f"sqlite:///{tmp_path}/budget.db",
        "--dataset",
        "tickets",
        "--set",
        "title=For the board",
    ]
    status, out, err = command(*given)
    assert (status, err) == (0, "")
    assert "report.html: epsilon at most 2.0000 at delta=3.34e-07, neighbours zero-out" in out
    assert "1 demonstration without a guarantee, 1 finding" in out
    assert SENTENCE in out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<bdi>For the board</bdi>" in page
    assert SECRET not in page
    assert f'<p class="statement">{SENTENCE}.</p>' in page.partition("</header>")[0]
    status, out, _ = command(*given, "--private", "--json", "--output", "private.html")
    assert status == 0
    assert json.loads(out) == {
        "output": "private.html",
        "confidential": True,
        "epsilon": 2.0,
        "delta": pytest.approx(1e-6 / 3),
        "relation": "zero-out",
        "choice": SENTENCE,
        "demonstrations": 7,
        "findings": 3,
        "left_out": {"demonstrations": 0, "findings": 0, "choices": 0},
    }
    assert SECRET in (tmp_path / "private.html").read_text(encoding="utf-8")
    assert "CONFIDENTIAL" in command(*given, "--private")[1]


def test_one_input_is_enough(command: Command, tmp_path: Path) -> None:
    for name, path in files(tmp_path).items():
        status, out, err = command(f"--{name}", str(path))
        assert (status, err) == (0, ""), name
        assert ("no bound on epsilon" in out) == (name == "audit")
    twice = ["--audit", str(files(tmp_path)["audit"])] * 2
    assert json.loads(command(*twice, "--json")[1])["findings"] == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to report"),
        (["--ledger", "sqlite:///budget.db"], "--account"),
        (["--demonstrations", "missing.jsonl"], "missing.jsonl"),
        (["--ledger", "sqlite:///budget.db", "--dataset", "tickets"], "ledger create"),
        (["--choice", "missing.json"], "missing.json"),
    ],
)
def test_what_it_cannot_do(command: Command, tmp_path: Path, arguments: list[str], says: str) -> None:
    status, _, err = command(*arguments)
    assert status == 2
    assert says in err
    assert not (tmp_path / "report.html").exists()


def test_an_output_that_cannot_be_written_leaves_nothing_behind(command: Command, tmp_path: Path) -> None:
    choice = str(files(tmp_path)["choice"])
    status, _, err = command("--choice", choice, "--output", "nowhere/report.html")
    assert (status, "cannot write nowhere/report.html" in err) == (2, True)
    (tmp_path / "folder").mkdir()
    assert command("--choice", choice, "--output", "folder")[0] == 2
    assert not list(tmp_path.glob(".*"))
