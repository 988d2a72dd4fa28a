"""`dpfewshot audit`: what releases reveal about the records."""

from __future__ import annotations

from typing import Any

import click

from dpfewshot.cli.attacks import influence, membership
from dpfewshot.cli.columns import text_option
from dpfewshot.cli.findings import conclude, finding_options
from dpfewshot.cli.options import generation_options, open_session
from dpfewshot.cli.stages import stages


class _CanaryByDefault(click.Group):
    """Runs the canary game unless another audit is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if named else ["canary", *args])


@click.group(cls=_CanaryByDefault)
def audit() -> None:
    """Audit a set-up or its releases, without spending or releasing anything.

    The default audit is the canary game. Exit status: 0 passed, 1 failed.

    \b
    Example:
      dpfewshot audit --task trec --records trec.jsonl.gz --epsilon 4 --max-tokens 15
      dpfewshot audit leak --demonstrations demos.jsonl --records trec.jsonl.gz
      dpfewshot audit membership --help
    """


@audit.command()
@generation_options
@click.option(
    "--plays",
    type=int,
    default=1000,
    show_default=True,
    help="Plays of each game, with canaries and again without.",
)
@click.option(
    "--beta",
    type=float,
    default=1e-3,
    show_default=True,
    help="Probability that a sound set-up fails by chance.",
)
@click.option(
    "--texts-only",
    is_flag=True,
    help="Play with your model and records, and look at the released texts alone.",
)
@finding_options
def canary(
    *, plays: int, beta: float, texts_only: bool, output: str | None, as_json: bool, **options: Any
) -> None:
    """Play with and without canaries against a set-up, and bound epsilon from below.

    Takes the options of `generate`. Fails if there is less noise than planned, if records are not drawn as
    planned, or if the model's answer to a prompt depends on other prompts. With --texts-only, a play is a
    whole run of the plan by your model: start with --plays 100.

    \b
    Example:
      dpfewshot audit canary --task trec --records trec.jsonl.gz --label Location --epsilon 4 --max-tokens 15
      dpfewshot audit canary --texts-only --plays 100 --task trec --records trec.jsonl.gz --epsilon 4
    """
    from dpfewshot.audit import canary_game

    session = open_session(options)
    stages()(f"playing {plays} games with canaries, and {plays} without")
    finding = canary_game(session.synthesizer, plays=plays, beta=beta, texts_only=texts_only)
    conclude([finding], output, as_json=as_json)


@audit.command()
@click.option(
    "--demonstrations",
    required=True,
    help="The released .jsonl of generate --output.",
)
@click.option("--records", required=True, help="The private records: .jsonl, .csv (also .gz) or .parquet.")
@text_option
@click.option("--label-column", default="label", show_default=True, help="The column of the label.")
@click.option("--unit", default=None, help="The column that names a record's unit, such as a customer id.")
@click.option(
    "--baseline", default=None, help="Instruction-only texts of the same model, in the same format."
)
@click.option("--held-out", default=None, help="Unused records, with the same columns.")
@click.option(
    "--long-run", type=int, default=10, show_default=True, help="Words of one unit alone that make a leak."
)
@finding_options
def leak(
    *,
    demonstrations: str,
    records: str,
    text: str | dict[str, str],
    label_column: str,
    unit: str | None,
    baseline: str | None,
    held_out: str | None,
    long_run: int,
    output: str | None,
    as_json: bool,
) -> None:
    """Search released texts for private text and personal data.

    Fails if a demonstration repeats a long run of words, or personal data, of one unit alone.

    \b
    Example:
      dpfewshot audit leak --demonstrations demos.jsonl --records tickets.jsonl --unit customer
    """
    from dpfewshot.audit import leak_check
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.records import read_records

    def read(path: str) -> list[Any]:
        return read_records(path, text=text, label=label_column, unit=unit)

    finding = leak_check(
        Demonstrations.from_jsonl(demonstrations),
        read(records),
        baseline=() if baseline is None else Demonstrations.from_jsonl(baseline),
        held_out=None if held_out is None else read(held_out),
        long_run=long_run,
    )
    conclude([finding], output, as_json=as_json)


audit.add_command(membership)
audit.add_command(influence)
