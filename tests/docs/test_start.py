"""docs/how-to/start.md runs as it stands: from a CSV file to a verified ledger."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfewshot.cli.project_file import FILE_NAME
from tests.support.commands import Run, Terminal
from tests.support.pages import DOCS, blocks
from tests.support.small_models import small, small_packaged

FIXTURES = (small, small_packaged)
PAGE = DOCS / "how-to/start.md"
QUICK = 'backend = "tests.support.scripts:Desk"'


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The page's commands, in a folder with its records; the umask is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFEWSHOT_LEDGER", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where no model was fetched
    exec(compile(blocks(PAGE, "python")[0], PAGE.name, "exec"), {})  # noqa: S102 - our own docs
    (script,) = blocks(PAGE, "sh")
    before = os.umask(0o022)
    yield script.splitlines()
    os.umask(before)


def test_the_page_runs(command: Run, lines: list[str]) -> None:
    output = ""
    for line in lines:
        program, *words = shlex.split(line)
        if program == "umask":
            os.umask(int(words[0], 8))
            continue
        assert program == "dpfewshot"
        status, out, err = command(*words)
        assert status == 0, out + err
        output += out
        if words[0] == "init":
            file = Path(FILE_NAME)
            shown = file.read_text(encoding="utf-8")
            file.write_text(shown.replace("[model]", f"[model]\n{QUICK}"), encoding="utf-8")
    released = Path("demos.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["certified"] for line in released] == [True] * 10
    assert " events agree, chain tip " in output
    assert Path("budget.db").stat().st_mode & 0o777 == 0o600
    status, _, err = command("generate")
    assert (status, "does not fit the budget" in err) == (3, True)


class Typed(Terminal):
    """Shows what is typed, as a terminal does."""

    def readline(self, *size: Any) -> str:
        line = super().readline(*size)
        sys.stderr.write(line)
        return line


@pytest.mark.usefixtures("lines")
def test_the_questions_are_those_that_the_page_shows(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are what follows a question's colon."""
    monkeypatch.setattr("dpfewshot.cli.init.recommended", lambda: "qwen-1.5b")  # whatever memory is here
    (shown,) = blocks(PAGE, "console")
    asked = re.sub(r"\n  (?!epsilon|[A-Z]\w+: )", " ", shown).splitlines()
    question = r"Column |May every|What is a|The most|  [A-Z]|Epsilon .2|Model|Optional"
    answers = [re.split(r":(?: |$)", line)[-1] for line in asked if re.match(question, line)]
    monkeypatch.setattr("sys.stdin", Typed("".join(f"{one}\n" for one in answers)))
    status, _, err = command("init", "tickets.csv")
    assert (status, len(answers)) == (0, 14)
    assert [line.rstrip() for line in err.splitlines()] == asked


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.usefixtures("small_packaged")
def test_the_plan_is_what_the_page_prints(command: Run, lines: list[str]) -> None:
    for line in lines[1:3]:
        status, out, err = command(*shlex.split(line)[1:])
        assert status == 0, out + err
    (plan,) = blocks(PAGE, "text")
    drawn = "      time:", "        ", "      model:"  # the machine's, and the model's texts
    same = [line for line in plan.splitlines() if not line.startswith(drawn)]
    assert [line for line in same if line not in out] == []
    assert "\n      model: the packaged model is for trying out" in out
    labels = [
        [line.partition(":")[0] for line in told.splitlines() if line.startswith(drawn[1])]
        for told in (plan, out)
    ]
    assert labels[0] == labels[1] != []
