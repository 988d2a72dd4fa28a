"""TREC with the packaged model, all six labels: the run recorded in docs/results/trec.md.

    python -m bench.trec trec.train.jsonl.gz > docs/results/trec.md

M = 80, N = 1, T = 15, a fresh draw for every token; ε = 4 at δ = 1e-5, and again at δ = 1/n_y to compare
with the paper. Takes about half an hour on two cores; progress goes to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.backends.protocol import Tokens
from dpfewshot.backends.streams.block import StreamBlock
from dpfewshot.values import delta_text, epsilon_text

EPSILON = 4.0
SETTINGS: dict[str, Any] = {
    "mechanism": dpf.mechanisms.Gaussian(),
    "prompts_per_draw": 80,
    "max_tokens": 15,
    "tokens_per_draw": 1,
    "record_token_cap": 100,
}


def prefix_tree_nodes(sequences: Sequence[Tokens]) -> int:
    """The nodes of the sequences' prefix tree: the fewest tokens that evaluating them takes."""
    ordered = sorted(tuple(sequence) for sequence in sequences)
    nodes = 0
    before: tuple[int, ...] = ()
    for sequence in ordered:
        shared = 0
        while shared < min(len(before), len(sequence)) and before[shared] == sequence[shared]:
            shared += 1
        nodes, before = nodes + len(sequence) - shared, sequence
    return nodes


class CountingLlamaCpp(LlamaCpp):
    """llama.cpp that records the fewest tokens that each block's prompts take."""

    least = 0

    def open_block(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> StreamBlock:
        """Counts the tree of the suffixes; the public block's caller counts the prefix."""
        self.least += prefix_tree_nodes(suffixes) + (len(prefix) if public else 0)
        return super().open_block(prefix, suffixes, tokens, public=public)


@dataclass
class Row:
    """One demonstration and its cost."""

    demonstration: dpf.Demonstration
    plan: dpf.GenerationPlan
    seconds: float
    evaluated: int
    least: int


@contextmanager
def loaded() -> Iterator[CountingLlamaCpp]:
    """The packaged model."""
    with CountingLlamaCpp(packaged_model_path(), context_tokens=256) as backend:
        yield backend


def run(records: list[dpf.Record], backend: CountingLlamaCpp, label: str, delta: float) -> Row:
    """Generates one label under its own budget: the labels' records are disjoint."""
    synthesizer = dpf.Synthesizer(
        dpf.tasks.TREC, records, backend, budget=dpf.PrivacyBudget(EPSILON, delta), labels=[label], **SETTINGS
    )
    evaluated, least, started = backend.tokens_evaluated, backend.least, time.perf_counter()
    demonstration = synthesizer.generate(label)
    row = Row(
        demonstration,
        synthesizer.plan,
        time.perf_counter() - started,
        backend.tokens_evaluated - evaluated,
        # the prompt without records reads every released token but the last
        backend.least - least + demonstration.token_count - 1,
    )
    print(f"{label}: {row.seconds:.0f} s, {demonstration.text!r}", file=sys.stderr)
    return row


def table(rows: list[Row]) -> Iterator[str]:
    """The plan, the demonstrations and the cost of one run."""
    yield "| label | n | q | δ | σ | ε, certified | noise on the mean | demonstration |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        part = row.plan.strata[0]
        yield (
            f"| {part.scope} | {part.population} | {float(part.sampling_rate):.4f} | {delta_text(row.plan.delta or 0)} "
            f"| {part.noise_multiplier:.4f} | {epsilon_text(row.plan.epsilon or 0)} | {part.noise_on_mean:.4f} "
            f"| {row.demonstration.text} |"
        )
    yield ""
    yield "| label | released tokens | seconds | tokens evaluated | least of a prefix tree | ratio |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row.demonstration.label} | {row.demonstration.token_count} | {row.seconds:.0f} "
            f"| {row.evaluated:,} | {row.least:,} | {row.evaluated / row.least:.3f} |"
        )
    evaluated, least = sum(row.evaluated for row in rows), sum(row.least for row in rows)
    seconds, released = sum(row.seconds for row in rows), sum(row.demonstration.token_count for row in rows)
    yield f"| all | {released} | {seconds:.0f} | {evaluated:,} | {least:,} | {evaluated / least:.3f} |"


def main(path: str) -> None:
    """Prints both runs as a page."""
    records = dpf.read_records(path)
    sizes = {label: sum(record.label == label for record in records) for label in dpf.tasks.TREC.labels or ()}
    print(HEADER.format(n=len(records)))
    with loaded() as backend:
        print("## δ = 1e-5\n")
        print("\n".join(table([run(records, backend, label, 1e-5) for label in sizes])), flush=True)
        print("\n## δ = 1/n_y, beside the paper\n")
        print("\n".join(table([run(records, backend, label, 1 / n) for label, n in sizes.items()])))
    print(FOOTER)


HEADER = """# TREC, all six labels

    python -m bench.trec trec.train.jsonl.gz > docs/results/trec.md

TREC's training questions ({n:,} records), SmolLM2-135M-Instruct (Q4_1) in process, Gaussian mechanism, K = 100, M = 80,
N = 1, T = 15, a fresh draw every token, ε = 4, neighbours zero-out. Each label has a budget of its own: their records are
disjoint, so all six together are (4, δ). On the command line, one label is

    dpfewshot generate --task trec --records trec.train.jsonl.gz --label Location --epsilon 4 --delta 1e-5 \\
      --preset tang --max-tokens 15

Abbreviation has 86 records, so M = 80 means q = 0.93: almost every record is in every draw, and the plan pays for it with
five times the noise. It uses the others' M to show that; a smaller M would not help, since noise on the mean grows.

"Least of a prefix tree" counts, for each draw, the nodes of the tree of its prompts after the common prefix, and the prefix
and each released token once. This lower bound may share what two private records have in common; the backend may not,
because such a schedule would depend on who else was drawn.
"""

FOOTER = """
The paper's σ for TREC at ε = 4 is 0.69, with n = 835 (Location) and δ = 1/835; its sensitivity is √2 for one record per
prompt, so its noise on the mean is 0.69·√2/80 = 0.0122, where sensitivity 1 needs 0.0086. Times come from a shared two-core
machine and mean little by themselves."""

if __name__ == "__main__":
    main(sys.argv[1])
