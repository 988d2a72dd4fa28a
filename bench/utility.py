"""Accuracy on the papers' five tasks, beside the papers' baselines: raw cells and docs/results/utility.md.

    python -m bench.utility DATA STORE [--user qwen] [--task NAME ...] [--page]

DATA holds the data sets; STORE is a folder outside of the project that keeps every demonstration, so that an interrupted
run resumes and a second model uses the same ones. Cells go to docs/results/raw/utility.jsonl, one line each; finished
cells are skipped. --page writes the page from them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import dpfewshot as dpf
from bench.batched import Batched
from bench.utility_data import DATA_SETS, DataSet
from bench.utility_settings import FreshNoise, Stored, WithExamples
from dpfewshot.evaluation import (
    Cell,
    Condition,
    Experiment,
    InstructionOnly,
    NonPrivateSample,
    Results,
    Synthetic,
    Trial,
    ZeroShot,
    evaluate,
)
from dpfewshot.mechanisms import AdaDPSyn, Gaussian, Mechanism, PublicCentred, ReportNoisyMax, SoftmaxChoice
from dpfewshot.mechanisms.adadpsyn import published

RAW = Path(__file__).parents[1] / "docs/results/raw/utility.jsonl"
DELTA = 1e-5
ITEMS = 200
REPETITIONS = 3
HEADLINE_REPETITIONS = 5
"""Repetitions behind the claims, at ε = 1 and without noise: intervals of three would be wide."""

HEADLINE = (0.0, 1.0, None)
EPSILONS: tuple[float | None, ...] = (1.0, 4.0, 2.0, 8.0)
SWEEP = (1, 2, 8, 12)
"""Numbers of demonstrations; every other table has four."""

SEVERAL_RECORDS = {"mit-g": (40, 4)}
"""M and N of ours with several records a prompt, for the tasks on which Tang's four are ahead at large ε."""

IN_DETAIL = ("trec", "mit-d")
"""Tasks whose number of demonstrations is varied, and that all mechanisms write for."""

OURS: Mechanism = PublicCentred()
MODELS = {
    "gemma": ("Gemma 3 270M", "models/gemma-3-270m-q4_k_m"),
    "qwen": ("Qwen2.5-Coder 1.5B", "models/qwen2.5-coder-1.5b-instruct-q4_k_m"),
}


def settings_of(data: DataSet, epsilon: float | None) -> Iterator[Condition]:
    """Our setting, Tang's Gaussian and AdaDPSyn, in the papers' sizes; without privacy ours alone."""
    yield ours(data)
    if epsilon is None:
        return
    tang = Synthetic("gaussian", Gaussian(), data.prompts, data.records_per_prompt, data.max_tokens)
    preset = published(data.task.name, epsilon=epsilon)
    mechanism = AdaDPSyn.preset(data.task.name, epsilon=epsilon)
    yield FreshNoise(tang)
    yield FreshNoise(
        Synthetic("adadpsyn", mechanism, preset.prompts, preset.records_per_prompt, data.max_tokens)
    )


def ours(data: DataSet, mechanism: Mechanism = OURS, name: str = "public-centred") -> Condition:
    """Three rounds around the public distribution, one record a prompt, one draw a demonstration.

    Extraction tasks get public examples. On classification tasks the small model copies such examples
    whatever the label.
    """
    plain = without_examples(data, mechanism, name)
    return WithExamples(plain, data.examples) if data.shows_examples else plain


def without_examples(data: DataSet, mechanism: Mechanism = OURS, name: str = "public-centred") -> Synthetic:
    """Ours, with the instruction as Tang et al. have it."""
    return Synthetic(name, mechanism, data.our_prompts, 1, data.our_tokens or data.max_tokens)


def trials(data: DataSet, store: Path) -> Iterator[tuple[int, Trial]]:
    """Every trial of a task, each with its place in the order of all tasks' trials."""

    def stored(setting: Condition) -> Condition:
        return Stored(setting, store)

    nothing_read = InstructionOnly(data.max_tokens)
    yield 0, Trial(ZeroShot(), 0.0, shots=0)
    for repetition in range(HEADLINE_REPETITIONS):
        yield repetition, Trial(stored(nothing_read), 0.0, repetition=repetition)
        if data.task.labels is None:
            yield (
                repetition,
                Trial(stored(WithExamples(nothing_read, data.examples)), 0.0, repetition=repetition),
            )
        yield repetition, Trial(stored(NonPrivateSample()), None, repetition=repetition)
        for place, epsilon in enumerate((None, *EPSILONS)):
            if repetition >= REPETITIONS and epsilon not in HEADLINE:
                continue
            for setting in settings_of(data, epsilon):
                yield (
                    repetition + REPETITIONS * max(0, place - 1),
                    Trial(stored(setting), epsilon, repetition=repetition),
                )
    yield from ((1, Trial(stored(setting), epsilon)) for setting, epsilon in the_other_way(data))


def mechanisms(data: DataSet, store: Path) -> Iterator[tuple[int, Trial]]:
    """Ours at ε = 1 with other mechanisms on one draw a demonstration (Tang, Table 4)."""
    others: tuple[Mechanism, ...] = (Gaussian(), ReportNoisyMax()) if data.task.name in IN_DETAIL else ()
    for repetition in range(REPETITIONS):
        for mechanism in (SoftmaxChoice(), *others):
            setting = Stored(ours(data, mechanism, f"{mechanism.name}, one draw"), store)
            yield REPETITIONS * len(EPSILONS), Trial(setting, 1.0, repetition=repetition)


def sweep(data: DataSet, store: Path) -> Iterator[tuple[int, Trial]]:
    """Ours with fewer and more demonstrations."""
    for repetition in range(REPETITIONS):
        for shots in SWEEP:
            for epsilon in (1.0, None):
                place = REPETITIONS * len(EPSILONS) + 1 + repetition
                yield place, Trial(Stored(ours(data), store), epsilon, shots, repetition)


def of_another(data: DataSet, store: Path) -> Iterator[tuple[int, Trial]]:
    """Trials of a model with another's demonstrations: the table at ε = 0, 1, 4 and none."""
    other = {setting.name for setting, _ in the_other_way(data)}
    for place, trial in trials(data, store):
        in_table = trial.epsilon in (*HEADLINE, 4.0) and trial.repetition < REPETITIONS
        if in_table and trial.condition.name not in other:
            yield place, trial


def records_a_prompt(data: DataSet, store: Path) -> Iterator[tuple[int, Trial]]:
    """Ours from several records a prompt."""
    setting = Stored(of_several_records(data), store)
    for repetition in range(REPETITIONS):
        for epsilon in (None, *EPSILONS):
            yield REPETITIONS * len(EPSILONS), Trial(setting, epsilon, repetition=repetition)


def of_several_records(data: DataSet) -> Condition:
    """Ours with M and N of `SEVERAL_RECORDS`."""
    prompts, records = SEVERAL_RECORDS[data.task.name]
    name = f"public-centred, {records} records a prompt"
    return WithExamples(Synthetic(name, OURS, prompts, records, data.max_tokens), data.examples)


def the_other_way(data: DataSet) -> Iterator[tuple[Condition, float | None]]:
    """The effect of the examples: ours with and without them, and Tang's Gaussian with them."""
    plain = without_examples(data)
    other = plain if data.task.labels is None else WithExamples(plain, data.examples)
    yield other, 1.0
    yield other, None
    if data.task.labels is None:
        tang = Synthetic("gaussian", Gaussian(), data.prompts, data.records_per_prompt, data.max_tokens)
        yield WithExamples(FreshNoise(tang), data.examples), 1.0


def main() -> None:
    """Measures the missing cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--user", choices=MODELS, default="gemma")
    parser.add_argument("--task", choices=DATA_SETS, action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024, help="tokens: fewer are faster")
    parser.add_argument("--raw", type=Path, default=RAW)
    arguments = parser.parse_args()
    arguments.store.mkdir(parents=True, exist_ok=True)
    arguments.raw.parent.mkdir(parents=True, exist_ok=True)
    tasks = arguments.task or list(DATA_SETS)
    writer = backend("gemma", arguments.threads, arguments.context)
    user = (
        None if arguments.user == "gemma" else backend(arguments.user, arguments.threads, arguments.context)
    )
    experiments = {
        name: experiment(DATA_SETS[name], arguments.data, writer, user, arguments.user) for name in tasks
    }
    order = [
        (place, position, name, trial)
        for position, name in enumerate(tasks)
        for place, trial in wanted(name, arguments.user, arguments.store)
    ]
    order.sort(key=lambda each: each[:2])
    results = Results(arguments.raw)
    for _, _, name, trial in order:
        evaluate(experiments[name], [trial], results, on_cell=show)


def wanted(name: str, user: str, store: Path) -> Iterator[tuple[int, Trial]]:
    """A task's trials for a model."""
    data = DATA_SETS[name]
    if user != "gemma":
        yield from of_another(data, store)
        return
    yield from trials(data, store)
    if name in SEVERAL_RECORDS:
        yield from records_a_prompt(data, store)
    yield from mechanisms(data, store)
    if name in IN_DETAIL:
        yield from sweep(data, store)


def backend(name: str, threads: int, context: int) -> Batched:
    """One of the models, with its weights in bfloat16, which evaluates many prompts at once."""
    return Batched(str(Path(__file__).parents[1] / MODELS[name][1]), threads=threads, context_tokens=context)


def experiment(
    data: DataSet,
    folder: Path,
    writer: Batched,
    user: Batched | None,
    user_name: str,
) -> Experiment:
    """The data of a task, with the first test items."""
    return Experiment(
        task=data.task,
        records=dpf.read_records(folder / f"{data.train}.jsonl.gz"),
        test=dpf.read_records(folder / f"{data.test}.jsonl.gz")[:ITEMS],
        writer=writer,
        writer_name=MODELS["gemma"][0],
        delta=DELTA,
        user=user,
        user_name=MODELS[user_name][0] if user else None,
        labels=data.labels,
        confidential=False,  # public benchmarks
    )


def show(cell: Cell) -> None:
    """Prints one line of progress."""
    print(
        json.dumps(
            {
                k: v
                for k, v in cell.as_dict().items()
                if k not in ("outcomes", "uncalibrated", "population", "settings")
            }
        ),
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
