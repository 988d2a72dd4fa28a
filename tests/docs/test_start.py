"""docs/how-to/start.md runs as it stands: from a CSV file to a verified ledger."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/how-to/start.md"


def blocks(language: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.model
@pytest.mark.slow
def test_the_page_runs(tmp_path: Path) -> None:
    (script,), (task,) = blocks("python"), blocks("toml")
    (tmp_path / "tickets.toml").write_text(task, encoding="utf-8")
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [[sys.executable, "-c", script]]
    assert lines.index("umask 077") + 1 == next(i for i, line in enumerate(lines) if "ledger create" in line)
    lines.remove("umask 077")
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "dpfewshot"
        commands.append([sys.executable, "-c", "from dpfewshot.cli import main; main()", *arguments])
    output = ""
    for command in commands:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, umask=0o077)
        assert done.returncode == 0, done.stdout + done.stderr
        output += done.stdout
    released = (tmp_path / "demos.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["certified"] for line in released] == [True, True]
    assert " events agree, chain tip " in output
    assert (tmp_path / "budget.db").stat().st_mode & 0o777 == 0o600
    (plan,) = blocks("text")
    untimed = [line for line in plan.splitlines() if "at most about" not in line]
    assert [line for line in untimed if line not in output] == []
