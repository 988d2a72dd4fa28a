"""`dpfewshot evaluate`: the accuracy that demonstrations give, beside the papers' baselines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.backends import open_backend
from dpfewshot.cli.options import (
    MECHANISM_NAMES,
    data_options,
    delta_of,
    delta_option,
    finite_or_inf,
    top_k_of,
)
from dpfewshot.cli.stages import quiet_option, stages
from dpfewshot.cli.tables import aligned
from dpfewshot.errors import InvalidPlan
from dpfewshot.values import PrivacyBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpfewshot.evaluation import Experiment, Summary, Trial


@click.command()
@data_options
@click.option("--test", required=True, help="Labelled test items, in the format of --records.")
@click.option(
    "--items", type=int, default=200, show_default=True, help="Use this many items, from the first."
)
@click.option("--label", "labels", multiple=True, help="A label to generate; may be repeated. Default: all.")
@click.option(
    "--epsilon", "epsilons", type=finite_or_inf, metavar="FLOAT", multiple=True, default=(1.0, 4.0),
    show_default=True,
    help="Epsilon of all demonstrations of a prompt together, or inf for no privacy; may be repeated.",
)  # fmt: skip
@delta_option
@click.option(
    "--shots", type=int, multiple=True, default=(4,), show_default=True,
    help="Demonstrations in the prompt; may be repeated.",
)  # fmt: skip
@click.option(
    "--mechanism", "mechanisms", type=click.Choice(MECHANISM_NAMES), multiple=True,
    default=("public-centred",), show_default=True, help="May be repeated.",
)  # fmt: skip
@click.option("--top-k", default="100", show_default=True, help="Candidate tokens, or 'all'.")
@click.option(
    "--prompts-per-draw", "-M", type=int, default=None,
    help="Prompts of a draw. Default: planned from public numbers, for the least noise.",
)  # fmt: skip
@click.option("--records-per-prompt", "-N", type=int, default=1, show_default=True)
@click.option("--max-tokens", type=int, default=40, show_default=True)
@click.option(
    "--tokens-per-draw", type=int, default=None,
    help="Tokens that share one draw of records. Default: all of a demonstration's.",
)  # fmt: skip
@click.option(
    "--repetitions", type=int, default=3, show_default=True, help="Repetitions, each with new demonstrations."
)
@click.option(
    "--baselines/--no-baselines", default=True, show_default=True,
    help="Also measure zero-shot, instruction-only (epsilon 0), no noise, and a non-private sample.",
)  # fmt: skip
@click.option(
    "--user-model",
    default=None,
    help="llama-cpp: the GGUF file of the model to measure. Default: the one that writes.",
)
@click.option("--output", default=None, help="A .jsonl file for results; a later run resumes from it.")
@click.option(
    "--public-data",
    is_flag=True,
    help="State that records and test items are public, and so the results are.",
)
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(*, output: str | None, public_data: bool, as_json: bool, **options: Any) -> None:
    """Measure the accuracy that demonstrations give on labelled test items, with 95 % intervals.

    Results on private data are confidential: they are for the operator alone.

    \b
    Example:
      dpfewshot evaluate --task trec --records trec.jsonl.gz --test trec-test.jsonl.gz \\
        --epsilon 1 --epsilon 4 --mechanism public-centred -M 80 --max-tokens 15 --output results.jsonl
    """
    from tqdm import tqdm

    from dpfewshot.evaluation import Results, summarise
    from dpfewshot.evaluation import evaluate as carry_out

    _check(options)
    tell = stages()
    results = Results(output)
    experiment = _experiment(options, confidential=not public_data)
    planned = list(_trials(options))
    with tqdm(total=len(planned), desc="evaluating", unit="trial", disable=None, leave=False) as bar:
        for number, trial in enumerate(planned, start=1):
            if bar.disable:  # there is no terminal
                tell(f"trial {number} of {len(planned)}")
            carry_out(experiment, [trial], results)
            bar.update()
    wanted = {experiment.key(trial) for trial in planned}
    summaries = summarise(cell for cell in results.cells if cell.key in wanted)
    if as_json:
        document = {"confidential": not public_data, "summaries": [one.as_dict() for one in summaries]}
        click.echo(json.dumps(document))
        return
    click.echo(_table(summaries))
    if not public_data:
        click.echo(
            "confidential: measured on private records, outside every budget; do not publish", err=True
        )


def _check(options: Mapping[str, Any]) -> None:
    for name in ("items", "repetitions"):
        if options[name] < 1:
            raise InvalidPlan(f"--{name} must be at least 1, not {options[name]}")
    for shots in options["shots"]:
        if shots < 1:
            raise InvalidPlan(f"--shots must be at least 1, not {shots}: the baselines include zero-shot")
    if options["user_model"] is not None and options["backend"] != "llama-cpp":
        raise InvalidPlan("--user-model needs --backend llama-cpp")


def _experiment(options: Mapping[str, Any], *, confidential: bool) -> Experiment:
    from dpfewshot.evaluation import Experiment
    from dpfewshot.records import read_records
    from dpfewshot.tasks import by_name

    columns = {"text": options["text"], "label": options["label_column"]}
    records = read_records(options["records"], **columns, unit=options["unit"])
    task, test = by_name(options["task"]), read_records(options["test"], **columns)[: options["items"]]
    for label in options["labels"] if task.labels is not None else ():
        task.check_label(label)
    budgets = [  # which checks the range of each epsilon and of delta
        PrivacyBudget(1.0 if math.isinf(each) else each, delta_of(options["delta"], None, records))
        for each in (1.0, *options["epsilons"])
    ]
    # Few-shot prompts are longer than generation prompts; one context serves both.
    settings = {**options, "context_tokens": options["context_tokens"] or _context(options)}
    writer = open_backend(settings, prompts=options["prompts_per_draw"], tell=stages())
    other = options["user_model"]
    user = None if other is None else open_backend({**settings, "model": other, "kept_prompts": 30})
    return Experiment(
        task=task,
        records=records,
        test=test,
        writer=writer,
        writer_name=_model_name(options["model"] or _default_model(options["backend"])),
        delta=budgets[0].delta,
        user=user,
        user_name=None if other is None else _model_name(other),
        labels=options["labels"] or None,
        confidential=confidential,
    )


def _context(options: Mapping[str, Any]) -> int | None:
    return 256 * (2 + max(options["shots"]) // 2) if options["backend"] == "llama-cpp" else None


def _default_model(backend: str) -> str:
    return "SmolLM2-135M (packaged)" if backend == "llama-cpp" else backend


def _model_name(model: str) -> str:
    return Path(model).name.removesuffix(".gguf")


def _trials(options: Mapping[str, Any]) -> Iterator[Trial]:
    from dpfewshot.evaluation import InstructionOnly, NonPrivateSample, Synthetic, Trial, ZeroShot
    from dpfewshot.mechanisms import by_name

    top_k = top_k_of(options["top_k"])
    conditions = [
        Synthetic(
            name,
            dataclasses.replace(by_name(name), top_k=top_k),  # type: ignore[type-var]
            prompts_per_draw=options["prompts_per_draw"],
            records_per_prompt=options["records_per_prompt"],
            max_tokens=options["max_tokens"],
            tokens_per_draw=options["tokens_per_draw"],
        )
        for name in options["mechanisms"]
    ]
    epsilons = [None if math.isinf(each) else each for each in options["epsilons"]]
    if options["baselines"]:
        yield Trial(ZeroShot(), 0.0, shots=0)
        epsilons = [*dict.fromkeys([*epsilons, None])]
    for shots in options["shots"]:
        for repetition in range(options["repetitions"]):
            if options["baselines"]:
                yield Trial(InstructionOnly(options["max_tokens"]), 0.0, shots, repetition)
                yield Trial(NonPrivateSample(), None, shots, repetition)
            for epsilon in epsilons:
                for condition in conditions:
                    yield Trial(condition, epsilon, shots, repetition)


def _table(summaries: Sequence[Summary]) -> str:
    """Return a table for people."""
    columns = ("condition", "epsilon", "shots", "accuracy", "95 % interval", "runs", "items")
    rows = [
        (
            one.condition,
            "none" if one.epsilon is None else f"{one.epsilon:g}",
            str(one.shots),
            f"{one.accuracy:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            str(one.repetitions),
            str(one.items),
        )
        for one in summaries
    ]
    return "\n".join(aligned([columns, *rows]))
