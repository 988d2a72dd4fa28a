"""What the command line prints: its own options, and columns that do not run together."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.backends import Scripted
from dpfewshot.cli.application import run
from dpfewshot.cli.generate import generate
from dpfewshot.cli.options import Key
from dpfewshot.cli.plan import in_detail, plan
from dpfewshot.cli.printing import aligned, in_options, say
from dpfewshot.planning.description import describe
from tests.support.commands import Run
from tests.support.factory import synthesizer
from tests.support.scripts import Sentence, tickets, written

PYTHON = re.compile(r"(?<![\w/'-])[a-z]+_[a-z_]+\b|\b[a-z]+=(?!\S*e-)|\bTrue\b|\bFalse\b|\bNone\b")
"""An argument of Python; a delta is an amount."""

KEYS = {one.name for one in plan.params if not one.opts}
"""What has no option."""


def test_a_terminal_breaks_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "      cost: " + "epsilon limits-what " * 9
    say(line)
    assert capsys.readouterr().out == f"{line}\n"  # nor does a pipe or a file break lines
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True, raising=False)
    say(f"plan\n{line}", err=True)
    told = capsys.readouterr().err.splitlines()
    assert told[:2] == ["plan", "      cost: epsilon limits-what epsilon"]
    assert all(one.startswith(" " * 8) and len(one) < 40 for one in told[2:])
    assert " ".join(told).split() == f"plan {line}".split()
    assert run(["plan", "--epsilon", "nought"]) == 2
    assert max(map(len, capsys.readouterr().err.splitlines())) < 40
    monkeypatch.setenv("COLUMNS", "1")
    assert run(["plan", "--epsilon", "nought"]) == 2


def in_python(said: str) -> list[str]:
    """The arguments of Python that are no keys."""
    return [one for one in PYTHON.findall(re.sub(r"--set \w+=", "", said)) if one not in KEYS]


def small() -> Scripted:
    """A scripted model whose context holds 200 tokens."""
    made = Sentence()
    made.context_tokens = 200  # type: ignore[attr-defined]
    return made


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    given = written(tmp_path, tickets(60))
    return [*given, "--backend", f"{__name__}:small", "--set", "probe_seconds=0.01", "--epsilon"]


@pytest.mark.parametrize(
    ("further", "advises"),
    [
        ("1 --max-tokens 5000 --set top_k=8", "--max-tokens 87"),
        ("1 --set record_token_cap=300 --set top_k=8", "--set record_token_cap=147"),
        ("1 --max-tokens 8 -M 31 --set holdout=0", "--prompts-per-draw 30"),
        (
            "1 --max-tokens 8 --set records_per_prompt=5 --set record_token_cap=60",
            "--set records_per_prompt=2",
        ),
        ("1 --max-tokens 8 --set tokens_per_draw=9", "--set tokens_per_draw=9"),
        ("1 --max-tokens 8 --shots 0", "--shots"),
        ("1 --max-tokens 8 --set accounting=published", "--set sampling=fixed-size"),
        ("1 --max-tokens 8 --set text=body", "text, label_column and --unit"),
        ("1 --max-tokens 8", "raise record_token_cap"),
        (
            "1 --max-tokens 80 --set top_k=8 --set prompt_token_limit=10",
            "more than --set prompt_token_limit=10",
        ),
        ("1 --chat", "chat = false in the task's file"),
    ],
)
def test_advice_on_the_command_line_names_options(
    command: Run, arguments: list[str], tmp_path: Path, further: str, advises: str
) -> None:
    if "--chat" in further:
        with (tmp_path / "task.toml").open("a") as task:
            task.write("\nchat = true\n")
        further = further.replace("--chat", "--max-tokens 8")
    _, out, err = command("plan", *arguments, *further.split(), "--details")
    said = out + err
    assert advises in said
    assert not in_python(said), said


def test_what_has_no_option_and_what_is_quoted_stays_as_it_is() -> None:
    for message in (
        "epsilon=4, delta=1e-05 remain",
        "there is no column 'max_tokens'",
        "--set max_tokens: must be a single value",
        "/home/me/max_tokens=3.csv: no such file",
        "executor= is of type int",
        "the population decides the relation",
    ):
        with click.Context(generate):
            assert in_options(message) == message


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("3", "--max-tokens 3"),
        ("'a b'", "--max-tokens a b"),
        ("None", "no --max-tokens"),
        ("", "--max-tokens"),
    ],
)
def test_an_arguments_value_follows_its_option(value: str, written: str) -> None:
    command = click.Command("any", params=[click.Option(["--max-tokens", "-T"])])
    with click.Context(command):
        assert in_options(f"give max_tokens={value}, or less") == f"give {written}, or less"


def test_a_key_with_a_value_becomes_a_line() -> None:
    command = click.Command("any", params=[Key(["top_k"])])
    with click.Context(command):
        assert in_options("give top_k=5, top_k=None or top_k") == "give --set top_k=5, no top_k or top_k"


@given(st.lists(st.lists(st.text("ab 1\n", max_size=30), min_size=3, max_size=3), min_size=1, max_size=4))
def test_no_two_columns_run_together(rows: list[list[str]]) -> None:
    lines = aligned([*rows, ["x", "y", "z"]])
    assert len(lines) == len(rows) + 1
    assert re.split(" {2,}", lines[-1].strip()) == ["x", "y", "z"]
    for line, row in zip(lines, rows, strict=False):
        if all(cell.isalnum() for cell in row):
            assert re.split(" {2,}", line.strip()) == row


@pytest.mark.parametrize("sigma", [0.0001, 15559.6447, 1e9])
def test_every_row_of_a_plan_has_as_many_cells_as_its_header(sigma: float) -> None:
    made = synthesizer().plan
    strata = [
        dataclasses.replace(one, noise_multiplier=sigma, noise_on_mean=sigma / 20) for one in made.strata
    ]
    made = dataclasses.replace(made, strata=tuple(strata), prompt_tokens=10**9, estimated_seconds=10.0**7)
    lines = in_detail(made).splitlines()
    assert "at most about 2777.8 hours for 2 demonstrations" in lines[1]
    assert "time: at most about 2777.8 hours" in describe(made)
    start = next(number for number, line in enumerate(lines) if "stratum" in line)
    assert [len(re.split(" {2,}", line.strip())) for line in lines[start : start + 3]] == [9] * 3
