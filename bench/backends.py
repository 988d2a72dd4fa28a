"""The in-process backend's cost: the page docs/results/backends.md.

    python -m bench.backends DATA > docs/results/backends.md

DATA is a folder with `trec.train.jsonl.gz`, `trec.test.jsonl.gz`, `agnews.train_subset.jsonl.gz` and
`agnews.test.jsonl.gz`. Needs the extra `bench` (llama-server comes from xllamacpp). Some ten minutes on two cores that
are otherwise idle; progress goes to standard error. `--only speed` and the like measure one section.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dpfewshot as dpf
from bench import backends_memory, backends_profile
from bench.backends_inputs import DATA_SETS, LONG, PROMPTS, SHORT, Inputs, Options, loaded
from bench.backends_speed import speed, verdict
from bench.backends_together import together
from bench.backends_ways import InProcess
from bench.trec import prefix_tree_nodes
from dpfewshot.backends import LlamaCpp

NODES_TARGET = 1.05
REST_TARGET = 0.02
MEMORY_TARGET = 1.5


def counts(options: Options) -> Iterator[str]:
    """Tokens evaluated for one released token, beside the prefix trees of its prompts."""
    yield "## Tokens evaluated for one released token, a fresh draw every token\n"
    yield COUNTS
    yield "| prompts | N | M | evaluated | tree of the step's prompts | ratio | target | | prefix once a demonstration | ratio | public tree | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    with loaded(replace(options, threads=1)) as backend:  # each of several lanes evaluates the prefix
        for data_set in DATA_SETS:
            inputs = Inputs(data_set, options.data, backend, LONG)
            for size in (1, 2):
                for prompts in (PROMPTS, 80):
                    yield counted(inputs, backend, prompts, size, measure=prompts == PROMPTS)
    yield ""


def counted(inputs: Inputs, backend: LlamaCpp, prompts: int, size: int, *, measure: bool) -> str:
    """One row: the mean over T = 15 tokens, one of which is evaluated and must agree."""
    rows = []
    for position in range(SHORT):
        subsets = inputs.draw(position, prompts, size)
        released = inputs.released[:position]
        suffixes = inputs.suffixes(subsets, released)
        without_records = [*inputs.prompts.prefix, *inputs.prompts.public_suffix, *released]
        whole = [[*inputs.prompts.prefix, *suffix] for suffix in suffixes]
        evaluated = sum(map(len, suffixes)) + 1
        rows.append(
            (
                evaluated,
                prefix_tree_nodes([without_records, *whole]),
                prefix_tree_nodes(suffixes) + 1,
                len(without_records) + sum(map(len, suffixes)),
            )
        )
        if measure and position == SHORT // 2:
            found = InProcess(backend).fresh(inputs, subsets, position).evaluated
            if found != evaluated:
                raise SystemExit(f"the backend evaluated {found} tokens, not {evaluated}")
    evaluated, step, once, public = (statistics.mean(column) for column in zip(*rows, strict=True))
    return (
        f"| {inputs.data_set.name} | {size} | {prompts} | {evaluated:.0f} | {step:.0f} | {evaluated / step:.3f} "
        f"| at most {NODES_TARGET} | {verdict(evaluated <= NODES_TARGET * step)} "
        f"| {once:.0f} | {evaluated / once:.3f} | {public:.0f} | {evaluated / public:.3f} |"
    )


def rest(options: Options) -> Iterator[str]:
    """The time that a real run spends outside of the language model."""
    yield "## All that is not the language model\n"
    yield REST
    yield "| M | R | tokens | seconds | llama.cpp | backend beside it | all the rest | target | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    records = dpf.read_records(options.data / "trec.train.jsonl.gz")
    with backends_profile.TimedLlamaCpp(context_tokens=256, threads=options.threads) as backend:
        backends_profile.generate(backend, records, 1, 1, 1)  # imports are lazy
        for prompts, tokens, every in ((20, SHORT, 1), (80, 5, 1), (80, SHORT, SHORT)):
            found = backends_profile.shares(backend, records, prompts, tokens, every)
            yield (
                f"| {prompts} | {every} | {found.tokens} | {found.seconds:.1f} | {found.model:.2%} | {found.backend:.2%} "
                f"| {found.rest:.2%} | at most {REST_TARGET:.0%} | {verdict(found.rest <= REST_TARGET)} |"
            )
            print(f"rest: M = {prompts}", file=sys.stderr)
        entries = backends_profile.heaviest(backend, records, 12)
    yield "\n| beside the model's answers, by cProfile (M = 20, 5 tokens) | calls | milliseconds, with what it calls |"
    yield "|---|---|---|"
    yield from (f"| {name} | {calls} | {seconds * 1e3:.1f} |" for name, calls, seconds in entries)
    yield ""


def memory(_: Options) -> Iterator[str]:
    """The largest resident set of a generation."""
    yield "## Memory\n"
    yield MEMORY
    yield "| context_tokens | kept_prompts | weights | M, prompts of 200 tokens | largest resident set, GiB | target | |"
    yield "|---|---|---|---|---|---|---|"
    for setting in backends_memory.SETTINGS:
        found = backends_memory.gigabytes(setting)
        yield (
            f"| {setting.context_tokens} | {setting.kept_prompts} | {setting.weights or 'of the file'} | {setting.prompts} "
            f"| {found:.2f} | below {MEMORY_TARGET} | {verdict(found < MEMORY_TARGET)} |"
        )
        print(f"memory: {setting}", file=sys.stderr)
    yield ""


SECTIONS = {"counts": counts, "speed": speed, "together": together, "rest": rest, "memory": memory}


def main() -> int:
    """Prints the page; the exit status is 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="The in-process backend's cost, as a page.")
    parser.add_argument("data", type=Path, help="the folder with the data sets")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all ways of asking")
    parser.add_argument("--threads", type=int, default=2, help="worker threads, of the server as well")
    chosen = parser.parse_args()
    options = Options(chosen.data, chosen.rounds, chosen.threads)
    print(HEADER)
    missed = False
    for name in chosen.only or SECTIONS:
        for line in SECTIONS[name](options):
            print(line, flush=True)
            missed |= "MISSED" in line
    print("Which targets are missed, and why: [weights](../decisions/weights.md).")
    return int(missed)


HEADER = """# The in-process backend's cost

    python -m bench.backends DATA > docs/results/backends.md

SmolLM2-135M-Instruct (a Q4_1 file), the Gaussian mechanism with K = 100. Records and released tokens are the same for every method, so all methods
evaluate the same prompts: M subsets of TREC's *Location* or AG News' *World*, after tokens of held-out texts. All methods took turns in one run.
A range is median (least to most) over its rounds. Compare ratios; times belong to one machine.
"""

COUNTS = """A step's tree contains once each token that its prompts, the public one included, share as a prefix. In process the prefix is evaluated once a
demonstration and the public prompt grows by a token, so fewer evaluations than the tree's nodes can suffice. A prefix that two private records share is evaluated
for each, since a schedule that shares it would depend on who else was drawn. With several threads each evaluates the prefix, once a demonstration too; the table counts one. "Prefix once a demonstration" is the stricter count: it requires that
sharing and credits nothing for the prefix. The "public tree" shares only what all prompts of a label begin with. Means over T = 15 tokens.
"""

REST = """A real `Synthesizer` with an SQLite ledger in a file, TREC's *Location*, ε = 4, δ = 1e-5, from the constructor to the text; the model and
the libraries are loaded before. "llama.cpp" is the time in its evaluating functions, "backend beside it" the backend's remaining work for an answer (log-softmax, batches),
"all the rest" is everything else: records into tokens, plan, accounting, ledger, draws, aggregation, noise.
"""

MEMORY = """The largest resident set of a process that loads the model and generates one demonstration of T = R = 4 tokens, with every record in the draw.
"""

if __name__ == "__main__":
    sys.exit(main())
