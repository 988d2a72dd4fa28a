"""Every command line of the README and the docs names a command and options that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from dpfewshot.cli.application import cli
from dpfewshot.cli.project import SETTINGS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
SHELLS = ("sh", "bash", "ini")
COMMAND = re.compile(r"(?:^|[/ ])dpfewshot ([a-z].*)")
END = re.compile(r"[|;&>]|2>|#.*")


def command_lines(text: str) -> Iterator[str]:
    """What follows `dpfewshot` in each line of each shell block, continued lines being joined."""
    fenced = [block for language, block in FENCED.findall(text) if language in SHELLS]
    for block in (*fenced, *INDENTED.findall(FENCED.sub("", text))):
        for line in block.replace("\\\n", " ").splitlines():
            if found := COMMAND.search(line):
                yield found[1]


def unknown(line: str) -> list[str]:
    """The words of a command line that no command understands."""
    words = shlex.split(END.split(line)[0])
    if words[0] == "audit" and words[1].startswith("-"):
        words.insert(1, "canary")  # the default audit
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            return words[:1]
        command = inner
        del words[0]
    assigned = [word.partition("=")[0] for before, word in pairwise(words) if before == "--set"]
    strange = [key for key in assigned if key.partition(".")[0] not in SETTINGS]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "--version"}
    return strange + [word for word in words if re.match("-+[a-zA-Z]", word) and word not in known]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: str(each.relative_to(ROOT)))
def test_every_option_exists(document: Path) -> None:
    lines = command_lines(document.read_text(encoding="utf-8"))
    assert [(line, found) for line in lines if (found := unknown(line))] == []


def test_the_finder_finds_lines() -> None:
    lines = list(command_lines((ROOT / "docs/how-to/ledger.md").read_text(encoding="utf-8")))
    assert len(lines) > 8
    assert any("--rule renyi" in line for line in lines)


def test_what_does_not_exist_is_found() -> None:
    assert unknown("generate --task trec --seed 1") == ["--seed"]
    assert unknown("generate --task trec --set seed=1 --set population.Refund=3") == ["seed"]
    assert unknown("ledger refill --ledger sqlite:///budget.db") == ["refill"]
    assert unknown("ledger show --dataset tickets --json > show.json") == []
