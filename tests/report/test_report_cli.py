"""`dpfewshot report`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Run
from tests.support.report_samples import SECRET, account, files

SENTENCE = (
    "with these demonstrations 84 ± 2 %, without 71 ± 2 % "
    "(ε = 0.2 for the choice, δ = 0, neighbours zero-out)"
)

LEFT_OUT = ("demonstrations", "findings", "choices")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_everything_at_once(command: Run, tmp_path: Path) -> None:
    account(tmp_path)
    given = [word for name, path in files(tmp_path).items() for word in (f"--{name}", str(path))]
    given += ["--ledger", "sqlite:///budget.db", "--dataset", "tickets", "--set", "title=For the board"]
    status, out, err = command("report", *given)
    assert (status, err) == (0, "")
    assert "report.html: epsilon at most 2.0000 at delta=3.34e-07, neighbours zero-out" in out
    assert "1 demonstration without a guarantee, 1 finding" in out
    assert SENTENCE in out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<bdi>For the board</bdi>" in page
    assert SECRET not in page
    assert f'<p class="statement">{SENTENCE}.</p>' in page.partition("</header>")[0]
    status, out, _ = command("report", *given, "--private", "--json", "--output", "private.html")
    assert status == 0
    cost = {"epsilon": 2.0, "delta": pytest.approx(1e-6 / 3), "relation": "zero-out"}
    counts = {"demonstrations": 7, "findings": 3, "left_out": dict.fromkeys(LEFT_OUT, 0)}
    told = {"output": "private.html", "confidential": True, "choice": SENTENCE}
    assert json.loads(out) == {**told, **cost, **counts}
    assert SECRET in (tmp_path / "private.html").read_text(encoding="utf-8")
    assert "CONFIDENTIAL" in command("report", *given, "--private")[1]


def test_a_text_that_the_account_did_not_release_is_marked(command: Run, tmp_path: Path) -> None:
    account(tmp_path)
    path = files(tmp_path)["demonstrations"]
    lines = path.read_text().splitlines(keepends=True)
    certified = next(place for place, one in enumerate(lines) if json.loads(one)["certified"])
    invented = json.loads(lines[certified]) | {"text": "an invented text"}
    free = {name: one for name, one in invented.items() if name != "certificate"}
    free |= {"text": "a free text", "epsilon": 0.0, "delta": 0.0}
    path.write_text("".join([*lines, json.dumps(invented) + "\n", json.dumps(free) + "\n"]))
    given = ("--demonstrations", str(path), "--ledger", "sqlite:///budget.db", "--dataset", "tickets")
    status, out, err = command("report", *given)
    assert (status, out.count("epsilon at most")) == (1, 1)
    assert [line.partition(":")[2][:40] for line in err.splitlines()] == [
        " 1 demonstration without a certificate: ",
        " 1 demonstration not released by this ac",
    ]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = page.partition("an invented text")[2].partition("</li>")[0]
    assert "not released by this account as shown" in shown
    assert page.count("not released by this account as shown") == 1
    assert f"<p>{len(lines) - 1} demonstrations with a guarantee" in page
    assert "1 demonstration not released by this account must not be published" in page
    shown = page.partition("a free text")[2].partition("</li>")[0]
    assert "not checked by this account" in shown
    assert "1 demonstration by which no record was read (ε = 0): no account can check that" in page


def test_one_input_is_enough(command: Run, tmp_path: Path) -> None:
    for name, path in files(tmp_path).items():
        status, out, err = command("report", f"--{name}", str(path))
        assert (status, err) == (0, ""), name
        assert ("no bound on epsilon" in out) == (name == "audit")
    twice = ["--audit", str(files(tmp_path)["audit"])] * 2
    assert json.loads(command("report", *twice, "--json")[1])["findings"] == 4


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
def test_what_it_cannot_do(command: Run, tmp_path: Path, arguments: list[str], says: str) -> None:
    status, _, err = command("report", *arguments)
    assert status == 2
    assert says in err
    assert not (tmp_path / "report.html").exists()


def test_an_output_that_cannot_be_written_leaves_nothing_behind(command: Run, tmp_path: Path) -> None:
    choice = str(files(tmp_path)["choice"])
    status, _, err = command("report", "--choice", choice, "--output", "nowhere/report.html")
    assert (status, "cannot write nowhere/report.html" in err) == (2, True)
    (tmp_path / "folder").mkdir()
    assert command("report", "--choice", choice, "--output", "folder")[0] == 2
    assert not list(tmp_path.glob(".*"))
