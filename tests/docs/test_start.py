"""docs/how-to/start.md runs as it stands: from a CSV file to a verified ledger."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.support.commands import Run
from tests.support.pages import DOCS, blocks

PAGE = DOCS / "how-to/start.md"
FEWER = ("--prompts-per-draw", "20", "--max-tokens", "4")
"""Goes with `generate`: seconds in place of a minute."""


@pytest.mark.model
@pytest.mark.slow
def test_the_page_runs(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (script,), (task,) = blocks(PAGE, "python"), blocks(PAGE, "toml")
    exec(compile(script, PAGE.name, "exec"), {})  # noqa: S102 - our own docs
    Path("tickets.toml").write_text(task, encoding="utf-8")
    lines = [line for block in blocks(PAGE, "sh") for line in block.replace("\\\n", " ").splitlines()]
    output, before = "", os.umask(0o022)
    try:
        for line in lines:
            program, *words = shlex.split(line)
            if program == "umask":
                os.umask(int(words[0], 8))
                continue
            assert program == "dpfewshot"
            status, out, error = command(*words, *(FEWER if words[0] == "generate" else ()))
            assert status == 0, out + error
            output += out
    finally:
        os.umask(before)
    released = Path("demos.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["certified"] for line in released] == [True, True]
    assert " events agree, chain tip " in output
    assert Path("budget.db").stat().st_mode & 0o777 == 0o600
    (plan,) = blocks(PAGE, "text")
    untimed = [line for line in plan.splitlines() if "at most about" not in line]
    assert [line for line in untimed if line not in output] == []
