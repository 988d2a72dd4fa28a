"""`dpfewshot generate` and `plan`: what they print, write and pay, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.cli import project
from dpfewshot.cli.application import main, run
from dpfewshot.cli.lines import Lines
from dpfewshot.cli.project import MECHANISM_NAMES
from dpfewshot.errors import DPFewShotError
from tests.support.commands import Run, Terminal
from tests.support.scripts import Hooked
from tests.support.small_models import small, small_packaged

FIXTURES = (small, small_packaged)

SECRET = "swordfish"
PLAN = (
    *("--task", "trec", "--records", "records.jsonl", "--label", "Location", "--epsilon", "4"),
    *("--delta", "1e-3", "--prompts-per-draw", "5", "--max-tokens", "3", "--set", "record_token_cap=12"),
)
SCRIPTED = (*PLAN, "--backend", "tests.support.scripts:Desk", "--set", "top_k=8")
"""The same with a model that takes no time, where the command is tested and not the model."""
ACCOUNT = ("--ledger", "sqlite:///budget.db", "--dataset", "towns")


# ---- with the packaged model, or one that takes no time --------------------------------------------------


@pytest.mark.model
@pytest.mark.usefixtures("towns")
def test_generate_appends_lines_says_what_they_cost_and_warns_of_both(command: Run) -> None:
    for there in ("", "warning: demos.jsonl has 1 line already: this run's are appended"):
        status, out, err = command("generate", *PLAN, "--output", "demos.jsonl")
        assert (status, out) == (0, "")
        assert SECRET not in err
        assert "nothing adds up what several runs" in err
        assert there in err
        assert ("appended" in err) == bool(there)
    lines = lines_of()
    assert len(lines) == 2
    members = "text label epsilon delta relation certified mechanism tokens finished certificate"
    for line in lines:
        assert set(line) == set(members.split())
        assert line["label"] == "Location"
        assert 3.5 < line["epsilon"] <= 4
        assert line["delta"] == 1e-3
        assert line["certified"] is True
        assert 1 <= line["tokens"] <= 4


@pytest.mark.usefixtures("towns")
def test_generate_json_and_no_privacy(command: Run) -> None:
    status, out, err = command("generate", *SCRIPTED, "--epsilon", "inf", "--json")
    document = json.loads(out)
    assert status == 0
    assert "nothing adds up" not in err
    assert document["demonstrations"][0]["certified"] is False
    assert document["demonstrations"][0]["epsilon"] is None
    assert document["plan"]["epsilon"] is None


@pytest.mark.usefixtures("towns")
def test_a_spent_ledger_is_refused_with_status_3_and_nothing_is_generated(command: Run) -> None:
    assert command("ledger", "create", *ACCOUNT, "--epsilon", "5", "--delta", "1e-2")[0] == 0
    generate = ("generate", *SCRIPTED, *ACCOUNT, "--output", "demos.jsonl")
    status, out, err = command(*generate, "--json")
    assert status == 0
    assert f"chain tip {json.loads(out)['chain_tip']}\n" in err
    status, out, err = command(*generate)
    assert (status, out) == (3, "")
    assert "epsilon is short. It needs epsilon=4, delta=0.001, and epsilon=1" in err
    assert len(lines_of()) == 1
    summary = json.loads(command("ledger", "show", *ACCOUNT, "--json")[1])
    assert 3.5 < summary["spent"]["epsilon"] <= 4
    assert summary["entries"] == 1


@pytest.mark.usefixtures("towns")
@pytest.mark.parametrize("mechanism", MECHANISM_NAMES)
def test_every_mechanism_generates(command: Run, mechanism: str) -> None:
    scripted = SCRIPTED[:-2] if mechanism == "word-histogram" else SCRIPTED  # it has no top_k
    status, out, err = command("generate", *scripted, "--mechanism", mechanism)
    line = json.loads(out)
    assert (status, line["mechanism"], line["certified"]) == (0, mechanism, True)
    assert 0 < line["epsilon"] <= 4
    assert SECRET not in err


@pytest.mark.usefixtures("towns")
@pytest.mark.parametrize(
    ("further", "relation", "certified", "count"),
    [
        ("--set sampling=fixed-size", "replace-one", True, 1),
        (
            "--mechanism gaussian --set sampling=fixed-size --set accounting=published",
            "replace-one",
            False,
            1,
        ),
        ("--set disjoint_parts=2 --shots 2 --set tokens_per_draw=3", "zero-out", True, 2),
        ("--set temperature=1 --set top_p=0.9", "zero-out", True, 1),
    ],
)
def test_draws_and_decoding(command: Run, further: str, relation: str, certified: bool, count: int) -> None:
    status, out, err = command("generate", *SCRIPTED, *further.split())
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, len(lines)) == (0, count), err
    for line in lines:
        assert (line["relation"], line["certified"]) == (relation, certified)
        assert (line["epsilon"] is None) is not certified


@pytest.mark.usefixtures("towns")
def test_private_predictions_clip_follows_from_a_temperature(command: Run) -> None:
    """Its clip of 10 by default would leave the budget nothing to decide; both given are still refused."""
    solved = ("generate", *SCRIPTED, "--mechanism", "private-prediction", "--set", "temperature=2")
    status, out, _ = command(*solved)
    assert (status, json.loads(out)["epsilon"] <= 4) == (0, True)
    status, _, err = command(*solved, "--set", "clip=10")
    assert (status, "would fix epsilon" in err) == (2, True)


NOISY = (
    *("--task", "trec", "--records", "records.jsonl", "--label", "Location", "--epsilon", "1"),
    *("--delta", "1e-3", "--max-tokens", "3", "--backend", "tests.support.scripts:Desk"),
    *("--mechanism", "word-histogram"),
)
"""Of 20 records a label."""


def on_terminals(monkeypatch: pytest.MonkeyPatch, names: str, answers: str = "") -> None:
    """Make these of the standard streams a terminal's, on which somebody has typed the answers."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: "stderr" in names, raising=False)
    monkeypatch.setattr(dpf.Synthesizer, "probe", lambda _: None)  # it takes seconds
    monkeypatch.setattr("sys.stdin", Terminal(answers) if "stdin" in names else StringIO(answers))


@pytest.mark.usefixtures("towns")
@pytest.mark.parametrize(
    ("terminals", "further", "status"),
    [
        ("stdin stderr", "", 130),
        ("stdin stderr", "--ledger sqlite:///budget.db --dataset towns --set create=true", 130),
        ("stdin stderr", "--ledger sqlite:///budget.db --dataset towns --set create=true --resume", 130),
        ("stdin stderr", "--quiet", 0),
        ("stdin stderr", "--epsilon 100 --quiet", 0),
        ("stdin stderr", "--epsilon inf", 0),
        ("stdin", "", 0),
        ("stderr", "", 0),
    ],
)
def test_who_is_at_a_terminal_is_asked_before_anything_is_spent(
    command: Run, monkeypatch: pytest.MonkeyPatch, terminals: str, further: str, status: int
) -> None:
    on_terminals(monkeypatch, terminals, "n\n")
    found, _, err = command("generate", *NOISY, *further.split(), "--output", "demos.jsonl")
    asked = "on 1 text? [y/N]" in err
    assert (found, asked, Path("demos.jsonl").exists()) == (status, status == 130, status == 0)
    assert err.endswith("dpfewshot: nothing is spent\n") is asked
    if asked and "--ledger" in further:
        assert json.loads(command("ledger", "show", *ACCOUNT, "--json")[1])["spent"]["epsilon"] == 0


@pytest.mark.usefixtures("towns")
@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("\n", 130)])
def test_only_a_yes_spends(command: Run, monkeypatch: pytest.MonkeyPatch, answer: str, status: int) -> None:
    on_terminals(monkeypatch, "stdin stderr", answer)
    found, out, err = command("generate", *NOISY)
    assert (found, len(out.splitlines())) == (status, 1 - bool(status))
    assert err.count("anything of the records") == 1


@pytest.mark.usefixtures("towns")
@pytest.mark.parametrize(("closed", "status"), [("0<&- 2>&-", 0), (">&-", 2)])
def test_a_service_may_have_closed_its_standard_streams(closed: str, status: int) -> None:
    """Without standard output a text that is paid for might be lost."""
    words = [sys.executable, "-m", "dpfewshot", "generate", *NOISY]
    found = subprocess.run(
        ["sh", "-c", f"{shlex.join(words)} {closed}"],  # noqa: S607
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (found.returncode, len(found.stdout.splitlines())) == (status, int(not status))
    assert ("standard output is closed" in found.stderr) == bool(status)


@pytest.mark.model
@pytest.mark.usefixtures("towns", "small_packaged")
def test_plan_spends_nothing_and_shows_everything(command: Run) -> None:
    plan = ("plan", *PLAN, "--set", "probe_seconds=0.2")
    told = json.loads(command(*plan, "--json")[1])
    assert told["sampling_rate"] == 5 / (0.8 * 20)  # a fifth of the 20 is kept for `choose`
    assert told["steps"] == 3
    assert told["epsilon"] <= 4
    assert told["delta"] == 1e-3
    assert told["estimated_seconds"] > 0
    assert told["prompt_tokens"] > 0
    assert "noise on mean" in command(*plan, "--details")[1]
    shown = command(*plan)[1]
    assert "time: at most about " in shown
    assert re.search(r"cost: epsilon [\d.]+ for one record left out: .* allowance of 0.001", shown)
    assert "account: none, so nothing adds up" in shown
    assert shown.endswith("; else dpfewshot generate, with the same options and --output demos.jsonl\n")
    assert not re.search("sigma|stratum|steps|unit|noise on", shown)


# ---- interruptions, with a scripted model ----------------------------------------------------------------

DESK = shlex.split(
    "generate --task task.toml --records records.jsonl --epsilon 4 --delta 1e-5 --mechanism gaussian "
    "--prompts-per-draw 100 --set tokens_per_draw=1 --max-tokens 8 --set top_k=all "
    "--ledger sqlite:///budget.db --dataset tickets --set create=true"
)
OUTPUT = ["--output", "demos.jsonl"]
WRITES = [*DESK, *OUTPUT]
RESUMES = [*WRITES, "--resume"]
WHOLE_DRAWS = [each.replace("tokens_per_draw=1", "tokens_per_draw=8") for each in WRITES]
"""A text takes one draw: an interruption may take the rest of it."""

Interrupts = Callable[..., int]


def lines_of(path: str = "demos.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch, command: Run) -> Run:
    """Runs a command with a model that is gone after so many answers to private prompts."""

    def call(arguments: list[str], answers: int = 1000) -> tuple[int, str, str]:
        def hook(number: int) -> None:
            if number > answers:
                raise KeyboardInterrupt

        monkeypatch.setattr(project, "open_backend", lambda *_, **__: Hooked(hook))
        return command(*arguments)

    return call


@pytest.mark.usefixtures("desk")
def test_a_line_that_is_only_in_the_ledger_is_written(generate: Run) -> None:
    output, resumed = Path("demos.jsonl"), [*RESUMES, "--json"]
    assert generate(resumed)[0] == 0
    whole = output.read_text().splitlines(keepends=True)
    output.write_text("a line of somebody else\n" + whole[0])
    status, out, _ = generate(resumed)
    assert status == 0
    assert output.read_text() == "a line of somebody else\n" + "".join(whole)
    assert json.loads(out)["demonstrations"] == [json.loads(line) for line in whole]


@pytest.mark.usefixtures("desk")
def test_an_interrupted_command_says_how_to_go_on_and_resumes(command: Run, generate: Run) -> None:
    """It pays for nothing twice and says so; the run after it makes what is missing."""
    status, _, told = generate(WRITES, answers=3)
    assert (status, Path("demos.jsonl").exists()) == (130, False)
    assert "released no demonstration, and demos.jsonl is as it was before" in told
    status, _, told = generate(RESUMES, answers=6)
    assert status == 130
    assert "resuming 2 demonstrations\na line follows when a text is done" in told
    assert "interrupted: 1 of this run's 2 demonstrations is in demos.jsonl. The same command with --" in told
    assert len(lines_of()) == 1
    status, told, _ = command("ledger", "show", *ACCOUNT[:2], "--account", "tickets")
    left = (
        "generates: delivery; generate --resume continues, and pays for labels that have not begun; a run "
        "that is left costs nothing more"
    )
    assert (status, left in told) == (0, True)
    status, _, told = command("report", *ACCOUNT[:2], "--account", "tickets")
    assert (status, "warning: a run of the account is unfinished, or still runs" in told) == (0, True)
    status, _, told = generate(WRITES)
    refused = "dpfewshot: a run is unfinished, or still runs (then wait): generate --resume"
    assert (status, told.splitlines()[-1].startswith(refused)) == (3, True)
    for _ in "ab":
        assert generate(RESUMES)[0] == 0
        assert [(line["label"], line["text"]) for line in lines_of()] == [
            ("refund", "my parcel is late"),
            ("delivery", "my parcel is late"),
        ]
    # without --resume another run is asked for, which the budget does not allow
    assert generate(WRITES)[0] == 3


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interrupts]:
    """Runs a command as `main` does, with a model whose third private answers bring signals."""

    def run_with(arguments: list[str], *signals: int) -> int:
        def hook(number: int) -> None:
            for each in signals if number == 3 else ():
                os.kill(os.getpid(), each)

        monkeypatch.setattr(project, "open_backend", lambda *_, **__: Hooked(hook))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return int(ended.value.code or 0)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    yield run_with
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_text_that_is_being_written(
    interrupts: Interrupts, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert interrupts(WHOLE_DRAWS, number) == 130
    told = capfd.readouterr().err
    assert "stopping after this text" in told
    assert "1 of this run's 2 demonstrations is in demos.jsonl" in told
    assert "makes the others, within what is reserved" in told
    assert interrupts([*WHOLE_DRAWS, "--resume"]) == 0
    assert "ended early" not in capfd.readouterr().err
    assert [line["text"] for line in lines_of()] == ["my parcel is late"] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("desk")
def test_a_run_that_stopped_between_two_texts_is_unfinished(
    command: Run, interrupts: Interrupts, generate: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    budget = ["--ledger", "sqlite:///budget.db", "--account", "tickets", "--epsilon", "20", "--delta", "1e-3"]
    assert command("ledger", "create", *budget)[0] == 0
    assert interrupts(WHOLE_DRAWS, signal.SIGINT) == 130
    capfd.readouterr()
    status, _, told = generate([*WHOLE_DRAWS[:-1], "others.jsonl"])
    assert (status, "--resume continues the unfinished run of this plan" in told) == (0, True)


@pytest.mark.usefixtures("desk")
def test_an_interrupt_that_nobody_can_read_waits_too(
    interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def refused(descriptor: int, data: bytes) -> int:
        if b"stopping" in data:
            raise BrokenPipeError  # as of `... 2>&1 | tee log`, which Ctrl-C ends, too
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refused)
    assert interrupts(WHOLE_DRAWS, signal.SIGINT) == 130
    assert [line["text"] for line in lines_of()] == ["my parcel is late"]


@pytest.mark.usefixtures("desk")
def test_a_line_that_another_process_writes_meanwhile_is_not_written_again(
    generate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path("demos.jsonl")
    assert generate(RESUMES)[0] == 0
    whole = output.read_bytes()
    output.write_bytes(b"")

    class Writing(Hooked):
        """Another process writes while this one plans."""

        def tokenize(self, text: str) -> list[int]:
            output.write_bytes(whole)
            return super().tokenize(text)

    monkeypatch.setattr(project, "open_backend", lambda *_, **__: Writing())
    assert run(RESUMES) == 0
    assert output.read_bytes() == whole


@pytest.mark.usefixtures("desk")
def test_a_second_interrupt_stops_at_once_and_says_what_is_lost(
    interrupts: Interrupts, capfd: pytest.CaptureFixture[str]
) -> None:
    assert interrupts(WHOLE_DRAWS, signal.SIGINT, signal.SIGTERM) == 130
    assert "may end early or be missing" in capfd.readouterr().err
    assert interrupts([*WHOLE_DRAWS, "--resume"]) == 0
    told = capfd.readouterr().err
    assert "ended early (refund): an interruption took the rest of the draw" in told


@pytest.mark.usefixtures("desk")
def test_resume_with_other_settings_names_those_of_the_unfinished_run(generate: Run) -> None:
    assert generate(WRITES, answers=7)[0] == 130
    status, _, told = generate([*RESUMES, "--epsilon", "1"])
    assert status == 2
    assert "one with other settings or another name is unfinished" in told
    assert "generates: delivery, epsilon=3.9999" in told
    assert "--mechanism gaussian, 8 tokens in all, --set records_per_prompt=1" in told
    assert generate([*RESUMES, "another", "--epsilon", "1"])[0] == 3, "a named one begins"


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (DESK, "run's 2 demonstrations is printed. The same command with --resume makes the others"),
        (
            [*DESK[: DESK.index("--ledger")], *OUTPUT],
            "demos.jsonl. This run cannot be resumed, and its budget is gone; --ledger keeps both",
        ),
    ],
)
def test_an_interruption_says_what_cannot_be_resumed(generate: Run, arguments: list[str], says: str) -> None:
    status, _, told = generate(arguments, answers=7)
    assert (status, says in told) == (130, True)


@pytest.mark.parametrize("existed", [True, False])
def test_a_failed_run_leaves_no_new_file(tmp_path: Path, existed: bool) -> None:
    output = tmp_path / "out.jsonl"
    if existed:
        output.touch()
    missing = ["--records", str(tmp_path / "none.jsonl"), "--epsilon", "1", "--output", str(output)]
    assert run(["generate", "--task", "trec", *missing]) == 2
    assert output.exists() == existed


def test_a_failed_run_leaves_the_new_file_that_another_one_writes(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    one = dpf.Demonstration("a refund", "Refund", 2, False, None, "zero-out", "gaussian")

    def fail() -> None:
        with Lines(str(output)):
            raise DPFewShotError("a run is unfinished, or still runs")

    with Lines(str(output)) as lines:
        with pytest.raises(DPFewShotError):
            fail()
        lines.write(one)
    assert output.read_text(encoding="utf-8").count("refund") == 1
    output.unlink()
    with pytest.raises(DPFewShotError):
        fail()
    assert not output.exists()
