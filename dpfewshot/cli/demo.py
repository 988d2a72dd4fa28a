"""`dpfewshot demo`: generate demonstrations from sample data with the packaged model."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from dpfewshot.cli.backends import open_backend
from dpfewshot.cli.options import describe
from dpfewshot.cli.stages import quiet_option, stages
from dpfewshot.runtime.files import write_errors
from dpfewshot.values import PrivacyBudget, delta_text, epsilon_text

if TYPE_CHECKING:
    from dpfewshot.backends.protocol import LogprobBackend
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.synthesizer import Synthesizer

KEPT_FOR = 45
"""M of the draws that the backend keeps: a quarter of the memory of the default."""

MAX_TOKENS = 18
PROMPT_TOKENS = 4_000
"""Of a demonstration: two cores finish five demonstrations in a minute."""

NEXT_STEPS = """
Next steps:
  your own records   dpfewshot plan --task task.toml --records tickets.jsonl --epsilon 4
                     dpfewshot generate ... with the same options and --output demos.jsonl
  your own model     ... --model model.gguf
  check the set-up   dpfewshot doctor
  the guarantee      docs/guarantee.md"""


@click.command()
@click.option("--epsilon", type=float, default=4.0, show_default=True)
@click.option("--model", default=None, help="A GGUF file. Default: the packaged SmolLM2-135M.")
@click.option("--threads", type=int, default=None, help="Threads of the language model. Default: all cores.")
@click.option("--save-records", default=None, help="Write the made-up tickets to this .jsonl file too.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(
    *, epsilon: float, model: str | None, threads: int | None, save_records: str | None, as_json: bool
) -> None:
    """Generate one private demonstration per label from 1,500 made-up support tickets.

    \b
    Example:
      dpfewshot demo
    """
    from dpfewshot.sample_data import support_tickets, write_jsonl

    if save_records is not None:
        with write_errors(save_records):
            write_jsonl(support_tickets(), save_records)
    started = time.monotonic()
    tell = stages()
    backend = open_backend({"model": model, "threads": threads}, prompts=KEPT_FOR, tell=tell)
    tell("planning")
    synthesizer = demo_synthesizer(backend, epsilon=epsilon)
    if not as_json:
        click.echo("1,500 made-up support tickets, read by a language model on this machine only")
        click.echo(describe(synthesizer.plan) + "\n")
    tell("generating")
    demonstrations = synthesizer.generate_all(
        on_demonstration=None if as_json else lambda one: click.echo(f"[{one.label}] {one.text}\n")
    )
    if as_json:
        click.echo(json.dumps(_document(synthesizer, demonstrations)))
    else:
        click.echo(_closing(synthesizer, time.monotonic() - started))


def demo_synthesizer(backend: LogprobBackend, *, epsilon: float = 4.0) -> Synthesizer:
    """The demo's synthesizer: planned, with work for a minute on two cores (docs/decisions/defaults.md)."""
    from dpfewshot.planning.population import default_delta
    from dpfewshot.planning.settings import Settings
    from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
    from dpfewshot.synthesizer import Synthesizer

    tickets = support_tickets()
    return Synthesizer(
        SUPPORT_TICKETS,
        tickets,
        backend,
        budget=PrivacyBudget(epsilon=epsilon, delta=default_delta(None, tickets)),
        max_tokens=MAX_TOKENS,
        settings=Settings(prompt_token_limit=PROMPT_TOKENS, record_token_cap=32),
    )


def _document(synthesizer: Synthesizer, demonstrations: Demonstrations) -> dict[str, object]:
    spent = synthesizer.spent
    return {
        "plan": synthesizer.plan.as_dict(),
        "demonstrations": [one.as_line() for one in demonstrations],
        "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
    }


def _closing(synthesizer: Synthesizer, seconds: float) -> str:
    spent = synthesizer.spent
    relation = synthesizer.plan.relation
    return (
        f"spent: epsilon={epsilon_text(spent.epsilon)} delta={delta_text(spent.delta)}, certified, "
        f"neighbours {relation}, "
        f"in {seconds:.0f} s (the labels' tickets are disjoint, so the largest cost counts)\n"
        f"You may publish these lines, or use them in prompts to any model, without limit.\n{NEXT_STEPS}"
    )
