"""`dpfewshot calibrate`: releases a prompt's bias towards each label, and keeps it in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.options import data_options
from dpfewshot.cli.releases import open_model, publish, read_inputs, release_options
from dpfewshot.cli.stages import stages
from dpfewshot.tasks import by_name
from dpfewshot.values import delta_text, epsilon_text, on_one_line

if TYPE_CHECKING:
    from dpfewshot.icl import Calibration

_SUFFIX = ".calibration.json"


@click.command()
@data_options
@click.option(
    "--demonstrations",
    default=None,
    help="The .jsonl of generate --output, in prompt order. Default: a prompt without demonstrations.",
)
@release_options
@click.option(
    "--output",
    default=None,
    help=f"A new file. Default: the demonstrations' name, with {_SUFFIX} for its ending.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the file holds: one JSON object.")
def calibrate(*, demonstrations: str | None, output: str | None, as_json: bool, **options: Any) -> None:
    """Release a prompt's bias towards each label, under (epsilon, delta), for icl.Classifier(calibration=).

    The records of frequent labels weigh less, unless --population gives one number for all labels: if most
    records had one label, it would look like bias.

    \b
    Example:
      dpfewshot calibrate --task trec --records trec.jsonl.gz --demonstrations demos.jsonl --epsilon 0.1
      dpfewshot choose ... --candidates demos.jsonl --calibration demos.calibration.json
    """
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.releases.calibration import release_calibration

    path = output or str(Path(demonstrations or "none").with_suffix(_SUFFIX))
    if Path(path).exists():
        raise click.UsageError(f"--output {path} exists: name a new file")
    shown = () if demonstrations is None else Demonstrations.from_jsonl(demonstrations)
    task = by_name(options["task"])
    records, settings = read_inputs(task, options)
    model = open_model(options)
    stages()("measuring the bias")
    released = release_calibration(task, records, model, shown, **settings)
    told = json.dumps(released.as_dict()) if as_json else f"{path}: {_in_words(released)}"
    publish(told, path, released.to_json)


def _in_words(released: Calibration) -> str:
    biases = ", ".join(
        f"{on_one_line(label)} {bias:+.2f}"
        for label, bias in zip(released.labels, released.bias, strict=True)
    )
    return f"in nats, with noise of {released.noise:.2g} each: {biases} ({_price(released)})"


def _price(released: Calibration) -> str:
    if released.spent is None:
        return "no guarantee"
    beside = ", at no cost beside generation" if released.parallel else ""
    return (
        f"epsilon {epsilon_text(released.spent.epsilon)}, delta {delta_text(released.spent.delta)}, "
        f"neighbours {released.relation}{beside}"
    )
