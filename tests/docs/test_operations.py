"""The nightly script, the files for a reviewer and the runbook run as the pages have them, in this order."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dpfewshot as dpf
from dpfewshot.cli.project_file import FILE_NAME
from dpfewshot.sample_data import support_tickets
from tests.support.pages import DOCS, ROOT, blocks
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
    (settings,) = blocks(HOW_TO / "project-file.md", "toml")
    quick = settings.replace("[model]", '[model]\nbackend = "bigrams:Bigrams"')
    quick = quick.replace("max_tokens = 20", "max_tokens = 12\nprompts_per_draw = 20")
    (tmp_path / FILE_NAME).write_text(quick, encoding="utf-8")
    with (tmp_path / "tickets.csv").open("w", newline="", encoding="utf-8") as file:
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
def test_a_night_is_paid_for_once_and_filed_and_survives_an_upgrade(shell, tmp_path: Path) -> None:
    plan, create, night = blocks(HOW_TO / "nightly.md", "bash")
    shell(plan)
    shell(create)
    assert (tmp_path / "budget.db").stat().st_mode & 0o777 == 0o600
    spent = []
    for _ in range(2):
        shell(f"export DAY=demos\n{night}")
        with dpf.BudgetLedger.open(f"sqlite:///{tmp_path / 'budget.db'}") as ledger:
            spent.append(ledger.account("tickets-2026").spent)
    assert spent[0] == spent[1]
    assert 0 < spent[0].epsilon < 4
    assert len((tmp_path / "demos.jsonl").read_text(encoding="utf-8").splitlines()) == 10  # two a label

    collect, *_ = blocks(DOCS / "privacy-officer.md", "bash")
    shell(collect)
    kept = tmp_path / "filed/confidential"
    assert json.loads((kept / "demonstrations-verified.json").read_text(encoding="utf-8"))["verified"]
    assert json.loads((kept / "ledger-verified.json").read_text(encoding="utf-8"))["ok"]
    shell("cd filed && sha256sum --check --quiet ../filed.sha256")

    if shutil.which("sqlite3") is None:
        pytest.skip("no sqlite3: the runbook's copies are not made")
    backup, note, check, alert = blocks(DOCS / "platform.md", "bash")
    shell(backup)
    shell(note)
    shell("mkdir -p new && ln -s ../programs new/bin")
    # a model of letters in place of a language model
    shell(check.replace("--model model.gguf", "--backend bigrams:Bigrams"))
    shell(alert)
    assert float(metrics(tmp_path)['dpfewshot_plans_left{account="tickets-2026"}']) > 7


def metrics(folder: Path) -> dict[str, str]:
    """What the alert's command wrote: each metric's value."""
    lines = (folder / "dpfewshot.prom").read_text(encoding="utf-8").splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)


def alert_on(**plans_left: int | None) -> str:
    """The alert's command, which reads these accounts."""
    amounts = {"spent": {"epsilon": 3.9}, "budget": {"epsilon": 4.0}}
    accounts = [{"dataset": name, **amounts, "plans_left": left} for name, left in plans_left.items()]
    (command,) = (block for block in blocks(DOCS / "platform.md", "bash") if "dpfewshot.prom" in block)
    assert command.startswith("dpfewshot ledger show --json >")
    shown = "\n".join(json.dumps(account) for account in accounts)
    return f"echo '{shown}' >" + command.partition(">")[2]


def test_the_metrics_are_those_of_each_account(shell, tmp_path: Path) -> None:
    shell(alert_on(tickets=None, nights=6))
    assert metrics(tmp_path) == {
        'dpfewshot_epsilon_spent{account="tickets"}': "3.9",
        'dpfewshot_epsilon_budget{account="tickets"}': "4.0",
        'dpfewshot_epsilon_spent{account="nights"}': "3.9",
        'dpfewshot_epsilon_budget{account="nights"}': "4.0",
        'dpfewshot_plans_left{account="nights"}': "6",
    }
    assert (tmp_path / "dpfewshot.prom").stat().st_mode & 0o777 == 0o644


def test_a_ledger_that_cannot_be_read_leaves_the_metrics(shell, tmp_path: Path) -> None:
    (tmp_path / "dpfewshot.prom").write_text("old 1\n", encoding="utf-8")
    (command,) = (block for block in blocks(DOCS / "platform.md", "bash") if "dpfewshot.prom" in block)
    shell(f"({command}) || test $? = 2")
    assert metrics(tmp_path) == {"old": "1"}


def test_the_tips_are_those_of_all_accounts(shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with dpf.BudgetLedger.open(url) as ledger:
        tips = [ledger.create(name, dpf.PrivacyBudget(4, 1e-5)).chain_tip for name in ("one", "two words")]
    (note, _) = blocks(DOCS / "platform.md", "sh")
    note = note.replace("sqlite:////srv/demonstrations/budget.db", url)
    shell(f"mkdir elsewhere && cd elsewhere && {note}")
    lines = (tmp_path / "elsewhere/tips.json").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["head"] for line in lines] == tips


def test_a_second_start_of_the_night_ends_at_once(shell) -> None:
    night = blocks(HOW_TO / "nightly.md", "bash")[-1]
    shell(f"flock nightly.lock bash -c '{night}' || test $? = 1")


def test_the_alerts_name_metrics_that_exist(shell, tmp_path: Path) -> None:
    shell(alert_on(nights=7))
    service = (ROOT / "examples/service/metrics.py").read_text(encoding="utf-8")
    exported = {name.replace(".", "_") for name in re.findall(r'"(service\.[\w.]+)"', service)}
    exported |= {name.partition("{")[0] for name in metrics(tmp_path)}
    exported |= {"node_textfile_mtime_seconds"}  # which the node exporter adds
    (rules,) = yaml.safe_load(blocks(DOCS / "platform.md", "yaml")[0])["groups"]
    named = {name for rule in rules["rules"] for name in re.findall(r"\w+_\w+", rule["expr"])}
    assert named <= exported


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_a_signed_release_is_checked_and_a_changed_one_is_refused(shell, tmp_path: Path) -> None:
    _, sign, check = blocks(DOCS / "privacy-officer.md", "bash")
    (tmp_path / "filed").mkdir()
    released = tmp_path / "filed/demos.jsonl"
    released.write_text("{}\n", encoding="utf-8")
    shell("cd filed && touch kept-back && sha256sum demos.jsonl kept-back > ../filed.sha256 && rm kept-back")
    shell("ssh-keygen -q -t ed25519 -N '' -f signing_key")
    shell('echo "privacy@example.com $(cat signing_key.pub)" > allowed_signers')
    shell(sign)
    shell(check)
    released.write_text("changed\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"demos\.jsonl: FAILED"):
        shell(check)
    shell("cd filed && sha256sum demos.jsonl > ../filed.sha256")
    with pytest.raises(AssertionError, match="Could not verify signature"):
        shell(check)


def test_the_table_of_odds_is_what_the_page_computes(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(DOCS / "privacy-officer.md", "python")
    exec(compile(block, "privacy-officer.md", "exec"), {})  # noqa: S102 - our own docs
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") == 5
    assert printed in (DOCS / "privacy-officer.md").read_text(encoding="utf-8")
