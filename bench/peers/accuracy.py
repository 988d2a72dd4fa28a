"""Accuracy in use of the peers' mechanisms at equal certified (ε, δ): cells of docs/results/raw/peers-accuracy.jsonl.

Ours, Tang et al.'s Gaussian and AdaDPSyn have cells in utility.jsonl; these are the others, on the same test items with
the same model, labels and instruction. M and T are those of ours, one record a prompt, one draw a demonstration.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.peers.embedding import Embedder, fetched
from bench.peers.evolution import PrivateEvolution
from bench.utility import MODELS, backend, experiment, ours, show
from bench.utility_data import DATA_SETS, DataSet
from bench.utility_settings import FreshNoise, Stored, WithExamples
from dpfewshot.evaluation import Condition, Results, Synthetic, Trial, evaluate
from dpfewshot.mechanisms import AdaDPSyn, Gaussian, InvisibleInk, PrivatePrediction
from dpfewshot.mechanisms.adadpsyn import published

RAW = Path(__file__).parents[2] / "docs/results/raw/peers-accuracy.jsonl"
TASKS = ("trec", "mit-d", "agnews")
EPSILONS = (1.0, 4.0)
AMIN, INK = "private-prediction", "invisible-ink"


def conditions(data: DataSet, epsilon: float, embedder: Embedder) -> Iterator[Condition]:
    """The peers that utility.jsonl lacks, with the instruction of ours."""
    evolution = PrivateEvolution(data.our_tokens or data.max_tokens, embedder)
    yield WithExamples(evolution, data.examples) if data.shows_examples else evolution
    yield ours(data, InvisibleInk(), INK)
    yield ours(data, PrivatePrediction(), AMIN)
    if data.shows_examples:  # utility.jsonl has these without the examples
        tang = Synthetic("gaussian", Gaussian(), data.prompts, data.records_per_prompt, data.max_tokens)
        yield WithExamples(FreshNoise(tang), data.examples)
        preset = published(data.task.name, epsilon=epsilon)
        size = (preset.prompts, preset.records_per_prompt, data.max_tokens)
        gao = Synthetic("adadpsyn", AdaDPSyn.preset(data.task.name, epsilon=epsilon), *size)
        yield WithExamples(FreshNoise(gao), data.examples)


def measure(data: Path, store: Path, repetitions: int) -> None:
    """Measures the missing cells, all of a repetition before the next."""
    store.mkdir(parents=True, exist_ok=True)
    model = backend("gemma", 1, 1024)
    embedder = Embedder(fetched(store), 1)
    sets = {name: experiment(DATA_SETS[name], data, model, None, "gemma") for name in TASKS}
    evolutions: dict[str, dict[float, list[Condition]]] = {
        name: {epsilon: list(conditions(DATA_SETS[name], epsilon, embedder)) for epsilon in EPSILONS}
        for name in TASKS
    }
    results = Results(RAW)
    for repetition in range(repetitions):
        for epsilon in EPSILONS:
            for place in range(max(len(each[EPSILONS[0]]) for each in evolutions.values())):
                for name in TASKS:
                    for condition in evolutions[name][epsilon][place : place + 1]:
                        trial = Trial(Stored(condition, store), epsilon, repetition=repetition)
                        evaluate(sets[name], [trial], results, on_cell=show)


WRITER = MODELS["gemma"][0]
