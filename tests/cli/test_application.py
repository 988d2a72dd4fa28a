"""The command line: exit status 0, 2 or 3, help, and one line that names what is wrong, quoting no record."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dpfewshot import __version__
from dpfewshot.cli.application import cli, main
from tests.support.commands import Run

SECRET = "swordfish"
LOADING, PLANNING = "loading the model", "planning"
TREC = ("--task", "trec", "--label", "Location", "--epsilon", "4", "--delta", "1e-3")
GENERATE = ("generate", *TREC, "--records", "records.jsonl", "--prompts-per-draw", "5", "--max-tokens", "4")


def one_line(status: int, out: str, err: str, *stages: str) -> str:
    """What is wrong, after the stages that were begun."""
    assert (status, out) == (2, "")
    assert SECRET not in err
    for stage in stages:
        assert err.startswith(f"{stage}\n")
        err = err.removeprefix(f"{stage}\n")
    assert err.startswith("dpfewshot: ")
    assert err.count("\n") == 1
    return err


# ---- bad input that is found before the model is loaded --------------------------------------------------

GOOD = json.dumps({"text": f"hello {SECRET}", "label": "Location"}).encode() + b"\n"


@pytest.mark.usefixtures("towns")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD * 2 + b'{"text": "swordfish\n', "line 3"),
        (GOOD + b"\n" + json.dumps({"text": SECRET, "label": f"love of {SECRET}"}).encode(), "line 3"),
    ],
    ids=["broken", "other label"],
)
def test_bad_records(command: Run, content: bytes, says: str) -> None:
    Path("records.jsonl").write_bytes(content)
    assert says in one_line(*command(*GENERATE))


@pytest.mark.usefixtures("towns")
def test_missing_and_broken_files(command: Run) -> None:
    assert "nowhere" in one_line(*command(*GENERATE, "--records", "nowhere.jsonl"))
    Path("broken.jsonl.gz").write_bytes(gzip.compress(Path("records.jsonl").read_bytes())[:-20])
    assert "gz" in one_line(*command(*GENERATE, "--records", "broken.jsonl.gz"))
    one_line(*command(*GENERATE, "--set", "text=body"))


@pytest.mark.usefixtures("towns")
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--epsilon 0", "epsilon must be a positive number"),
        ("--epsilon -1", "epsilon must be a positive number"),
        ("--epsilon nan", "neither a finite number nor the word inf"),
        ("--delta 0", "delta must lie between 0 and 1"),
        ("--delta 1", "delta must lie between 0 and 1"),
        ("--set top_k=many", "top_k"),
        ("--task nosuchtask", "nosuchtask"),
        ("--task nowhere.toml", "nowhere.toml"),
        ("--backend crystal-ball", "crystal-ball"),
        ("--nosuchoption 1", "--nosuchoption"),
        ("--output /nowhere/at/all.jsonl", "cannot write"),
        ("--resume", "--resume needs --ledger"),
        ("--prompts-per-draw 21 --set holdout=0", "--prompts-per-draw 20 would fit"),
        ("--prompts-per-draw 20", "holdout of 0.2 (0 uses all): --prompts-per-draw 16 would fit"),
        ("--max-tokens 0", "--max-tokens"),
        ("--label Entity", "Entity"),
        ("--set record_token_cap=0", "record_token_cap"),
        ("--mechanism oracle", "oracle"),
        ("--mechanism report-noisy-max --set top_p=0.9", "the winner alone"),
        ("--mechanism invisible-ink --set clip=3", "its settings are"),
        ("--set temperature=-1", "temperature"),
        ("--set sampling=bernoulli", "bernoulli"),
    ],
)
def test_bad_options(command: Run, option: str, says: str) -> None:
    assert says in one_line(*command(*GENERATE, *option.split()))


@pytest.mark.usefixtures("towns")
def test_model_that_is_missing_or_no_model(command: Run) -> None:
    assert "nowhere.gguf" in one_line(*command(*GENERATE, "--model", "nowhere.gguf"), LOADING)
    Path("text.gguf").write_text("not a model")
    assert "GGUF" in one_line(*command(*GENERATE, "--model", "text.gguf"), LOADING)


@pytest.mark.model
@pytest.mark.usefixtures("towns")
def test_a_top_k_above_the_vocabulary(command: Run) -> None:
    assert "top_k" in one_line(*command(*GENERATE, "--set", "top_k=1000000"), LOADING, PLANNING)


# ---- help ------------------------------------------------------------------------------------------------


def commands_of(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(names), group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands_of(command, *names, name)
        else:
            yield " ".join([*names, name]), command


COMMANDS = dict(commands_of(cli))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_no_option_stands_twice(command: Run, name: str) -> None:
    status, out, _ = command(*name.split(), "--help")
    assert status == 0
    assert f"dpfewshot {name}".strip() in out.partition("Example:")[2]
    options = [one for parameter in COMMANDS[name].params for one in parameter.opts]
    assert len(set(options)) == len(options)
    assert name == "" or isinstance(COMMANDS[name], click.Group) or "--json" in options


MOST_OPTIONS, MOST_OF_GENERATE = 45, 20
"""`--help` aside. What is set rarely is a key of the project file."""


def test_there_are_few_options() -> None:
    options = {
        name: {one.opts[0] for one in command.params if isinstance(one, click.Option)}
        for name, command in COMMANDS.items()
    }
    assert len(set().union(*options.values())) <= MOST_OPTIONS
    assert len(options["generate"]) <= MOST_OF_GENERATE


def test_every_command_takes_its_ledger_from_the_environment() -> None:
    found = {
        name: one
        for name, command in COMMANDS.items()
        for one in command.params
        if isinstance(one, click.Option) and "--ledger" in one.opts
    }
    assert {"generate", "choose", "search", "labels", "verify", "report", "ledger show"} <= found.keys()
    assert {option.envvar for option in found.values()} == {"DPFEWSHOT_LEDGER"}


def test_a_misspelt_command_is_refused_with_the_one_that_is_meant(command: Run) -> None:
    assert command("genrate")[2] == "dpfewshot: No such command 'genrate'. Did you mean 'generate'?\n"
    assert "Did you mean" not in command("xyz")[2]


def test_version(command: Run) -> None:
    assert __version__ in command("--version")[1]


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "dpfewshot", "plan", "--task"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("dpfewshot: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("model > /dev/full", "No space left on device"),
        ("genrate 2> /dev/full", ""),
        ("model | head -c 0", ""),
        ("genrate 2>&1 | head -c 0", ""),
    ],
)
def test_what_cannot_be_printed_is_neither_a_bug_nor_an_audits_verdict(words: str, says: str) -> None:
    command, pipe, reader = words.partition(" |")
    script = f"set -o pipefail; {sys.executable} -m dpfewshot {command}{pipe}{reader}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)  # noqa: S607
    assert (done.returncode, done.stderr.count("report it"), says in done.stderr) == (2, 0, True)


def test_help_and_import_load_nothing_heavy() -> None:
    script = (
        "import sys, dpfewshot.cli.application as cli; cli.run(['generate', '--help']); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_a_warning_is_one_line_without_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert warnings.formatwarning("few units measure", UserWarning, "choosing.py", 1) == (
        "warning: few units measure\n"
    )


def test_help_says_what_a_project_file_gives(command: Run) -> None:
    required = Counter(re.findall(r"\[(required[^\]]*)\]", " ".join(command("labels", "--help")[1].split())))
    assert required == {"required": 2, "required without a project file": 1}  # --epsilon, --count; --records
