"""The nightly script and the files for a reviewer, as the pages have them, one after the other."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.sample_data import support_tickets
from tests.support.pages import DOCS, blocks
from tests.support.processes import environment

HOW_TO = DOCS / "how-to"


@pytest.fixture
def shell(tmp_path: Path):
    """Runs bash in a folder with the pages' files, and a model of letters in place of a language model."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "dpfewshot"
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m dpfewshot "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "bigrams.py").write_text(blocks(HOW_TO / "backends.md", "python")[0], encoding="utf-8")
    (tmp_path / "tickets.toml").write_text(blocks(HOW_TO / "start.md", "toml")[0], encoding="utf-8")
    with (tmp_path / "tickets-2026.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [(ticket.text, ticket.label) for ticket in support_tickets()]
        csv.writer(file).writerows([("body", "topic"), *rows])
    variables = environment(PATH=f"{programs}:{os.environ['PATH']}")

    def run(script: str, *arguments: str) -> None:
        done = subprocess.run(
            ["/bin/bash", "-euc", script, "nightly.sh", *arguments],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_a_night_is_paid_for_once_and_filed(shell, tmp_path: Path) -> None:
    # a model of letters in place of a language model
    plan, create, night = (
        block.replace("--model model.gguf", "--backend bigrams:Bigrams")
        for block in blocks(HOW_TO / "nightly.md", "bash")
    )
    shell(plan)
    shell(create)
    assert (tmp_path / "budget.db").stat().st_mode & 0o777 == 0o600
    spent = []
    for _ in range(2):
        shell(f"export DAY=demos\n{night}", "-M", "20")
        with dpf.BudgetLedger.open(f"sqlite:///{tmp_path / 'budget.db'}") as ledger:
            spent.append(ledger.account("tickets-2026").spent)
    assert spent[0] == spent[1]
    assert 0 < spent[0].epsilon < 4
    assert len((tmp_path / "demos.jsonl").read_text(encoding="utf-8").splitlines()) == 5  # one a label

    (collect,) = blocks(HOW_TO / "regulator.md", "bash")
    shell(collect.replace("--dataset tickets ", "--dataset tickets-2026 "))
    kept = tmp_path / "filed/confidential"
    assert json.loads((kept / "demonstrations-verified.json").read_text(encoding="utf-8"))["verified"]
    assert json.loads((kept / "ledger-verified.json").read_text(encoding="utf-8"))["ok"]
    shell("cd filed && sha256sum --check --quiet ../filed.sha256")


def test_the_table_of_odds_is_what_the_page_computes(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(HOW_TO / "explain-epsilon.md", "python")
    exec(compile(block, "explain-epsilon.md", "exec"), {})  # noqa: S102 - our own docs
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") == 5
    assert printed in (HOW_TO / "explain-epsilon.md").read_text(encoding="utf-8")
