"""`dpfewshot replace`: writes new texts in place of those that nobody would use, at no cost."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.cli.generate import JUDGE
from dpfewshot.cli.lines import Lines
from dpfewshot.cli.models import Model, workers_of
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import quiet_option, stages
from dpfewshot.cli.project import AccountName, Budget, Data, PlanOptions, Project
from dpfewshot.demonstrations import Demonstrations, numbered_lines
from dpfewshot.errors import LedgerError
from dpfewshot.runtime.files import write_errors, write_whole
from dpfewshot.values import Demonstration, counted, on_one_line

if TYPE_CHECKING:
    from dpfewshot.synthesizer import Synthesizer

_NUMBERS: Final = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_LINES: Final = 10_000


@click.command()
@click.argument("numbers", nargs=-1)
@takes(
    *(Data, Model, Budget, PlanOptions, AccountName, "workers", "ray", "output"),
    required=("task", "records", "epsilon", "ledger", "output"),
    files={"demonstrations": "output"},
    output={"help": "The .jsonl file that `generate` wrote."},
)
@quiet_option
def replace(*, project: Project, numbers: Sequence[str], as_json: bool) -> None:
    """Write new texts in place of those that you would not use, at no cost.

    NUMBERS are lines of the output: 2 5-7. On a terminal it lists the texts, and asks for them. Lines that
    you deleted are replaced, too, so that each label has as many texts as planned. The new ones come from
    the counts that `generate` paid for. Judge only how the texts read, not by your records.

    \b
    Example:
      dpfewshot replace 2 5-7
    """
    output, ledger, prompts = str(project.output), project.account.ledger, project.settings.prompts_per_draw
    chosen = _chosen(numbers)
    if not project.counts_words:
        raise click.UsageError(
            "replace needs a mechanism that counts words once for all texts, as the default does: this one "
            "draws for each text"
        )
    new: list[Demonstration] = []
    with (
        workers_of(
            project.model, workers=project.workers, ray=project.ray, prompts=prompts, ledger=ledger
        ) as work,
        project.synthesizer(resuming=True) as synthesizer,
    ):
        asks = not numbers and not as_json and _asks()
        if asks:
            _list(_texts_of(output))
            stages()(JUDGE)
            chosen = _asked()
        while written := _replaced(synthesizer, output, chosen, work):
            new += written.values()
            _list(written)
            if not asks:
                break
            chosen = _asked()
            if not chosen:
                break
    there = _texts_of(output)
    if as_json:
        lines = Demonstrations(there.values()).to_lines()
        click.echo(json.dumps({"replaced": len(new), "demonstrations": lines}))
    elif new:
        stages()(f"done: {counted(len(new), 'new text')} in {output}, at no further cost")
    else:
        stages()(f"nothing to replace: {output} has all texts of the plan. Name lines: dpfewshot replace 2 5")


def _replaced(
    synthesizer: Synthesizer, output: str, chosen: frozenset[int], work: Mapping[str, Any]
) -> dict[int, Demonstration]:
    """Take the chosen lines out, and append new ones for all that lack; the new ones, by their lines."""
    there, run = _texts_of(output), synthesizer.newest_run()
    if run is None:
        raise LedgerError(
            "the account has no run of this plan, so no counts are paid for: dpfewshot generate begins one. "
            "Records, task, model and settings must be those of the run whose texts are to be replaced"
        )
    ours = {number: one for number, one in there.items() if one.certificate and one.certificate.run == run}
    if others := sorted(chosen - ours.keys()):
        raise click.UsageError(f"{output}: line {others[0]} has no text of this plan's newest run")
    kept = [one for number, one in ours.items() if number not in chosen]
    planned = Counter(synthesizer.plan.labels * synthesizer.plan.settings.shots_per_label)
    lacking = (planned - Counter(one.label for one in kept)).total()
    if lacking:
        stages()(f"writing {counted(lacking, 'text')}, at no cost")
    if chosen:  # what ends this early, `replace` without numbers finishes
        _take_out(output, chosen)
    before = len(there) - len(chosen)
    with Lines(output) as lines:
        synthesizer.generate_all(
            on_demonstration=partial(lines.write, again=True), resume=True, keep=kept, **work
        )
    return dict(list(_texts_of(output).items())[before:])


def _texts_of(output: str) -> dict[int, Demonstration]:
    """The demonstrations of the file by their lines; none if the whole file was deleted."""
    return dict(numbered_lines(output)) if Path(output).exists() else {}


def _take_out(output: str, chosen: frozenset[int]) -> None:
    with write_errors(output):
        lines = Path(output).read_text(encoding="utf-8").split("\n")
        write_whole(output, "\n".join(one for at, one in enumerate(lines, 1) if at not in chosen))


def _list(texts: Mapping[int, Demonstration]) -> None:
    """Print texts with the numbers of their lines, on a terminal."""
    for number, one in texts.items() if sys.stdout.isatty() else ():
        click.echo(f"{number:4}  [{on_one_line(one.label)}] {on_one_line(one.text)}")


def _asks() -> bool:
    quiet = click.get_current_context().params["quiet"]
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty() and not quiet


def _asked() -> frozenset[int]:
    """The lines that the user would not use."""
    question = "replace which lines, such as 2 5-7 (Enter: none)"
    return _chosen(click.prompt(question, default="", show_default=False, err=True).split())


def _chosen(numbers: Sequence[str]) -> frozenset[int]:
    """The lines that numbers and ranges name."""
    chosen: set[int] = set()
    for each in numbers:
        found = _NUMBERS.fullmatch(each)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last < _MOST_LINES:
            raise click.UsageError(f"{each!r} is no line of the output: give numbers such as 2, or 5-7")
        chosen.update(range(first, last + 1))
    return frozenset(chosen)
