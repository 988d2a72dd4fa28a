"""`dpfewshot choose`: chooses the demonstrations to use, and says how accurate they are."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.options import data_options
from dpfewshot.cli.releases import open_model, publish, read_inputs, release_options
from dpfewshot.cli.stages import stages
from dpfewshot.errors import InvalidPlan
from dpfewshot.tasks import Task, by_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpfewshot.backends import LogprobBackend
    from dpfewshot.releases.candidates import Candidate

SCORES = ("accuracy", "likelihood")


@click.command()
@data_options
@click.option(
    "--candidates",
    "files",
    multiple=True,
    required=True,
    help="A .jsonl file of demonstrations from generate --output; repeat it for several candidates.",
)
@click.option(
    "--without/--no-without",
    default=True,
    show_default=True,
    help="Whether no demonstrations at all are a candidate too. Their accuracy is measured anyway.",
)
@click.option(
    "--instruction-only",
    is_flag=True,
    help="Add a candidate that costs nothing: one text a label, which the model writes without records.",
)
@click.option(
    "--calibration",
    "calibrations",
    multiple=True,
    help="A file from calibrate. Its prompt, which must be a candidate, is one with it too. Repeatable.",
)
@click.option(
    "--score",
    type=click.Choice(SCORES),
    default=SCORES[0],
    show_default=True,
    help="Choose by right or wrong, or by the probability of the label.",
)
@click.option("--balanced", is_flag=True, help="Count every label alike, whatever its number of units.")
@release_options
@click.option("--proxy-choice", is_flag=True, help="Say that another model will use the demonstrations.")
@click.option("--output", default=None, help="A new .jsonl file for the chosen demonstrations.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def choose(
    *,
    files: tuple[str, ...],
    without: bool,
    instruction_only: bool,
    calibrations: tuple[str, ...],
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the demonstrations that label the records best, under (epsilon, 0), and print their accuracy.

    \b
    Example:
      dpfewshot choose --task trec --records trec.jsonl.gz --candidates demos.jsonl \\
        --candidates others.jsonl --epsilon 0.2 --output chosen.jsonl
    """
    from dpfewshot.releases.candidates import checked_candidates
    from dpfewshot.releases.choosing import choose as choose_among

    if output is not None and Path(output).exists():
        raise click.UsageError(f"--output {output} exists: name a new file")
    task = by_name(options["task"])
    candidates = _candidates(files, without=without)
    checked_candidates(task, candidates)
    records, settings = read_inputs(task, options, pure=True)
    model = open_model(options)
    if instruction_only:
        candidates.append(_written_without_records(task, model))
    stages()("scoring the candidates")
    choice = choose_among(
        task,
        records,
        model,
        [*candidates, *_calibrated(task, model, candidates, calibrations)],
        score=options["score"],
        balanced=options["balanced"],
        proxy=options["proxy_choice"],
        **settings,
    )
    named = f"{choice.candidate.name}: " if choice.ingredients else ""
    told = json.dumps(choice.as_dict()) if as_json else named + choice.statement
    publish(told, output, choice.demonstrations.to_jsonl)


def _candidates(files: tuple[str, ...], *, without: bool) -> list[Candidate]:
    """The candidates of the files, after the one without demonstrations."""
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.releases.candidates import Candidate

    named = [Candidate(Demonstrations.from_jsonl(path), name=path) for path in files]
    return [Candidate(), *named] if without else named


def _written_without_records(task: Task, model: LogprobBackend) -> Candidate:
    from dpfewshot.baselines import instruction_only_demonstrations
    from dpfewshot.releases.candidates import Candidate

    return Candidate(instruction_only_demonstrations(task, model), name="instruction-only")


def _calibrated(
    task: Task, model: LogprobBackend, candidates: Sequence[Candidate], paths: Sequence[str]
) -> Iterator[Candidate]:
    """The candidates that files of `dpfewshot calibrate` were released for, with their calibrations."""
    from dpfewshot.icl import Calibration
    from dpfewshot.icl.few_shot import FewShotPrompt

    prompts = {FewShotPrompt(task, model, one.demonstrations).fingerprint(): one for one in candidates}
    for path in paths:
        released = Calibration.from_json(path)
        if released.prompt not in prompts:
            raise InvalidPlan(f"{path}: was released for another prompt than those of --candidates")
        plain = prompts[released.prompt]
        yield dataclasses.replace(plain, name=f"{plain.name} with {path}", calibration=released)
