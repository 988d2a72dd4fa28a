"""docs/how-to/project-file.md runs as it stands, with a scripted model, and shows what `init` writes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dpfewshot.cli.project_file import _SECTION_OF, FILE_NAME
from tests.support.commands import Run
from tests.support.pages import DOCS, blocks

PAGE = DOCS / "how-to/project-file.md"
QUICK = 'backend = "tests.support.scripts:Desk"'


def test_the_page_lists_every_key() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## The keys")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    listed = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(_SECTION_OF)


def test_the_page_runs(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFEWSHOT_LEDGER", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where no model was fetched
    exec(compile(blocks(PAGE, "python")[0], PAGE.name, "exec"), {})  # noqa: S102 - our own docs
    (lines,), (shown,) = blocks(PAGE, "sh"), blocks(PAGE, "toml")
    for line in lines.splitlines():
        program, *words = shlex.split(line)
        assert program == "dpfewshot"
        status, out, err = command(*words)
        assert status == 0, out + err
        if words[0] == "init":
            file = Path(FILE_NAME)
            assert file.read_text(encoding="utf-8") == shown
            file.write_text(shown.replace("[model]", f"[model]\n{QUICK}"), encoding="utf-8")
    status, _, err = command("generate")
    assert (status, "does not fit the budget" in err) == (3, True)
