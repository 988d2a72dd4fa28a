"""Accuracy on the papers' five tasks, beside the papers' baselines: bench/results/utility.jsonl.

    python -m bench.utility DATA STORE [--user qwen] [--task NAME ...]
    python -m bench.utility DATA STORE --records 300 --task agnews # ours from the first records
    python -m bench.pages                                          # the tables of docs/results/utility.md

DATA holds the data sets; STORE is a folder outside of the project that keeps every demonstration, so that an interrupted
run resumes and a second model uses the same ones. A cell is one line; finished cells are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import dpfewshot as dpf
from bench.batched import Batched
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.certificates import Certificate
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.evaluation import (
    Cell,
    Condition,
    Experiment,
    InstructionOnly,
    NonPrivateSample,
    Request,
    Results,
    Synthetic,
    Trial,
    ZeroShot,
    evaluate,
)
from dpfewshot.evaluation.conditions import INSTRUCTION_ONLY, NON_PRIVATE_SAMPLE
from dpfewshot.generation.generation import unaccounted
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms import AdaDPSyn, Gaussian, Mechanism, PublicCentred, ReportNoisyMax
from dpfewshot.mechanisms.adadpsyn import published

ROOT = Path(__file__).parents[1]
RAW = ROOT / "bench/results/utility.jsonl"
DELTA = 1e-5
ITEMS = 200
SHOTS = 4
REPETITIONS = 3
HEADLINE_REPETITIONS = 5
"""Repetitions behind the claims, at ε = 1 and without noise: intervals of three would be wide."""

HEADLINE = (0.0, 1.0, None)
EPSILONS = (1.0, 2.0, 4.0, 8.0)
SWEEP = (1, 2, 8, 12)
"""Numbers of demonstrations; every other table has four."""

SEVERAL_RECORDS = {"mit-g": (40, 4)}
"""M and N of ours with several records a prompt, for the tasks on which Tang's four are ahead at large ε."""

IN_DETAIL = ("trec", "mit-d")
"""Tasks whose number of demonstrations is varied, and that all mechanisms write for."""

OURS: Mechanism = PublicCentred(contrast=0)
MODELS = {
    "gemma": ("Gemma 3 270M", "models/gemma-3-270m-q4_k_m"),
    "qwen": ("Qwen2.5-Coder 1.5B", "models/qwen2.5-coder-1.5b-instruct-q4_k_m"),
}
ZERO_SHOT = "zero-shot"
BASELINES = (INSTRUCTION_ONLY, f"{INSTRUCTION_ONLY}, public examples")
"""Demonstrations that read no record."""

CERTIFIED = "certified"

DIRECTORS = (
    "steven spielberg", "alfred hitchcock", "quentin tarantino", "martin scorsese", "stanley kubrick", "james cameron",
    "ridley scott", "tim burton", "woody allen", "clint eastwood", "francis ford coppola", "peter jackson",
)  # fmt: skip
GENRES = (
    "comedy", "horror", "drama", "science fiction", "western", "thriller",
    "romance", "animated", "action", "documentary", "musical", "fantasy",
)  # fmt: skip

# Labels outside of the tasks: these show the form of a record and cannot serve as demonstrations.
QUESTIONS = (
    ("Color", "What color are the taxis of Lisbon ?"),
    ("Date", "When did the first train run between Liverpool and Manchester ?"),
)
NEWS = (
    (
        "Health",
        "Doctors Test New Flu Vaccine. A hospital in Oslo said on Monday that a new vaccine protected nine of ten patients.",
    ),
    (
        "Weather",
        "Storm Closes Mountain Roads. Heavy snow blocked three passes on Friday and left hundreds of drivers waiting.",
    ),
)
DOCUMENTS = (
    (
        "Ship",
        "The Northern Star is a cargo ship that was built in 1962 in Gdansk and sails between Norway and Iceland.",
    ),
    ("Language", "Arvani is a language spoken by about two thousand people in the hills of northern Laos."),
)
DIRECTED = (
    ("george lucas", "what is the 1977 george lucas movie about a farm boy who joins a rebellion in space"),
    (
        "sofia coppola",
        "which film directed by sofia coppola follows an aging actor and a young woman in tokyo",
    ),
)
OF_A_GENRE = (
    ("mystery", "what mystery film follows a detective who hunts a killer through a snowed in village"),
    ("war", "which war movie is about a group of soldiers sent behind enemy lines to save one man"),
)


@dataclass(frozen=True)
class DataSet:
    """One of the papers' tasks, with M, N and T of Tang et al. where two cores allow it.

    Their T is 100 for AG News and DBPedia, and M 40 for DBPedia. Ours has its own M, N = 1, and its own T for
    DBPedia's small labels: with one draw a demonstration many prompts cost little, and few tokens take little noise.
    """

    task: dpf.Task
    train: str
    test: str
    prompts: int
    records_per_prompt: int
    max_tokens: int
    our_prompts: int
    labels: tuple[str, ...] | None = None
    examples: tuple[tuple[str, str], ...] = ()
    our_tokens: int | None = None

    @property
    def free(self) -> bool:
        """Whether labels are free text: then the instruction of ours ends with the public examples.

        On classification tasks the small model copies such examples whatever the label.
        """
        return self.task.labels is None

    def told(self, condition: Condition) -> Condition:
        """The condition as ours has it, with the examples where labels are free."""
        return WithExamples(condition, self.examples) if self.free else condition


DATA_SETS = {
    "trec": DataSet(dpf.tasks.TREC, "trec.train", "trec.test", 80, 1, 15, 80, None, QUESTIONS),
    "agnews": DataSet(dpf.tasks.AGNEWS, "agnews.train_subset", "agnews.test", 10, 2, 30, 40, None, NEWS),
    "mit-d": DataSet(dpf.tasks.MIT_D, "mit_d.train", "mit_d.test", 20, 4, 20, 60, DIRECTORS, DIRECTED),
    "mit-g": DataSet(dpf.tasks.MIT_G, "mit_g.train", "mit_g.test", 20, 4, 20, 60, GENRES, OF_A_GENRE),
    "dbpedia": DataSet(
        dpf.tasks.DBPEDIA, "dbpedia.train_subset", "dbpedia.test_subset", 20, 2, 30, 160, None, DOCUMENTS, 20
    ),
}


@dataclass(frozen=True)
class FreshNoise:
    """A stand-in for fresh draws: a paper's mechanism with their noise, on one draw.

    A fresh draw for each token, as published, takes 12 to 25 times the tokens (docs/results/mechanisms.md), too many for
    two cores. The noise of such a plan is added to vectors of one draw for all tokens. No guarantee holds, and none is
    stated; nothing tests that its utility is that of the paper's setting.
    """

    synthetic: Synthetic

    @property
    def name(self) -> str:
        """The name in results."""
        return self.synthetic.name

    def demonstrations(self, request: Request) -> Demonstrations:
        """The requested demonstrations, without a guarantee."""
        every_token = replace(self.synthetic, tokens_per_draw=1)
        if request.epsilon is None:
            return self.synthetic.demonstrations(request)
        generation = unaccounted(_on_one_draw(every_token.synthesizer(request).set_up))
        labels = sorted(set(request.labels)) * request.shots_per_label
        return request.in_order(generation.release(label, self.synthetic.max_tokens) for label in labels)


def _on_one_draw(set_up: SetUp) -> SetUp:
    """The same noise for every token, on one draw of records for all."""
    plan = set_up.plan
    tokens = plan.settings.max_tokens
    parts = [
        replace(part, draws=replace(part.draws, steps=part.steps // tokens, tokens_per_draw=tokens))
        for part in plan.strata
    ]
    settings = replace(plan.settings, tokens_per_draw=tokens)
    return replace(set_up, plan=replace(plan, strata=tuple(parts), settings=settings), certified=False)


@dataclass(frozen=True)
class WithExamples:
    """A setting whose instruction ends with public examples of its task.

    Tang's instruction asks for the director in the sentence. A small model ignores that, and a demonstration without it
    teaches nothing. Two invented examples show the form: public text, which costs nothing.
    """

    setting: Condition  # not "condition": stored descriptions hold the name
    examples: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The name in results."""
        return f"{self.setting.name}, public examples"

    def demonstrations(self, request: Request) -> Demonstrations:
        """The requested demonstrations."""
        task = request.task
        shown = "\n\n".join(
            f"{task.label_field}: {label}\n{task.text_field}: {text}" for label, text in self.examples
        )
        told = replace(task, instruction=f"{task.preamble()}{shown}")
        return self.setting.demonstrations(replace(request, task=told))


@dataclass(frozen=True)
class Stored:
    """A setting whose demonstrations are cached in a folder."""

    setting: Condition  # stored too
    folder: Path = field(repr=False)

    @property
    def name(self) -> str:
        """The name in results."""
        return self.setting.name

    def demonstrations(self, request: Request) -> Demonstrations:
        """The requested demonstrations."""
        parts = (request.task.name, self.name, request.epsilon, len(request.labels), request.repetition)
        path = self.folder / ("_".join(str(part) for part in parts) + ".jsonl")
        if not path.exists():
            self.setting.demonstrations(request).to_jsonl(path)
        # Of one plan: each line states what its label's stratum reserved, and strata are disjoint.
        of_one_plan = Certificate("", None, "", run=path.stem)
        return Demonstrations(
            replace(one, certificate=of_one_plan) if one.certified else one
            for one in Demonstrations.from_jsonl(path)
        )


def conditions(data: DataSet) -> Iterator[tuple[Condition, float | None, int, int]]:
    """Every cell of a task: its condition, ε, number of demonstrations and repetitions."""
    nothing_read = InstructionOnly(data.max_tokens)
    yield ZeroShot(), 0.0, 0, 1
    yield nothing_read, 0.0, SHOTS, HEADLINE_REPETITIONS
    if data.free:
        yield WithExamples(nothing_read, data.examples), 0.0, SHOTS, HEADLINE_REPETITIONS
    yield NonPrivateSample(), None, SHOTS, HEADLINE_REPETITIONS
    for epsilon in (None, *EPSILONS):
        yield ours(data), epsilon, SHOTS, repetitions(epsilon)
        for paper in papers(data, epsilon):
            yield paper, epsilon, SHOTS, repetitions(epsilon)
    for condition, epsilon in the_other_way(data):
        yield condition, epsilon, SHOTS, 1
    if data.task.name in SEVERAL_RECORDS:
        for epsilon in (None, *EPSILONS):
            yield of_several_records(data), epsilon, SHOTS, REPETITIONS
    if data.task.name in IN_DETAIL:
        for mechanism in (Gaussian(), ReportNoisyMax()):
            yield on_one_draw(data, mechanism), 1.0, SHOTS, REPETITIONS
        for shots, epsilon in itertools.product(SWEEP, (1.0, None)):
            yield ours(data), epsilon, shots, REPETITIONS


def repetitions(epsilon: float | None) -> int:
    """Those of a cell that the writer uses itself."""
    return HEADLINE_REPETITIONS if epsilon in HEADLINE else REPETITIONS


def ours(data: DataSet, mechanism: Mechanism = OURS, name: str = "public-centred") -> Condition:
    """Three rounds around the public distribution, one record a prompt, one draw a demonstration."""
    return data.told(plain(data, mechanism, name))


def on_one_draw(data: DataSet, mechanism: Mechanism) -> Condition:
    """Another mechanism in place of ours (Tang, Table 4)."""
    return ours(data, mechanism, f"{mechanism.name}, one draw")


def plain(data: DataSet, mechanism: Mechanism = OURS, name: str = "public-centred") -> Synthetic:
    """Ours, with the instruction as Tang et al. have it."""
    return Synthetic(name, mechanism, data.our_prompts, 1, data.our_tokens or data.max_tokens)


def tang(data: DataSet) -> Condition:
    """Tang's Gaussian, in the paper's size."""
    size = (data.prompts, data.records_per_prompt, data.max_tokens)
    return FreshNoise(Synthetic("gaussian", Gaussian(), *size))


def papers(data: DataSet, epsilon: float | None) -> Iterator[Condition]:
    """Tang's Gaussian and AdaDPSyn, in the papers' sizes; none without privacy."""
    if epsilon is None:
        return
    preset = published(data.task.name, epsilon=epsilon)
    size = (preset.prompts, preset.records_per_prompt, data.max_tokens)
    yield tang(data)
    yield FreshNoise(Synthetic("adadpsyn", AdaDPSyn.preset(data.task.name, epsilon=epsilon), *size))


def the_other_way(data: DataSet) -> Iterator[tuple[Condition, float | None]]:
    """The effect of the examples: ours with and without them, and Tang's Gaussian with them."""
    other = plain(data) if data.free else WithExamples(plain(data), data.examples)
    yield other, 1.0
    yield other, None
    if data.free:
        yield WithExamples(tang(data), data.examples), 1.0


def of_several_records(data: DataSet) -> Condition:
    """Ours with M and N of `SEVERAL_RECORDS`."""
    prompts, records = SEVERAL_RECORDS[data.task.name]
    name = f"public-centred, {records} records a prompt"
    return WithExamples(Synthetic(name, OURS, prompts, records, data.max_tokens), data.examples)


def trials(data: DataSet, store: Path, user: str) -> Iterator[Trial]:
    """A task's trials. A second model uses the demonstrations of the table at ε = 0, 1, 4 and none."""
    compared = {ZERO_SHOT, *BASELINES, NON_PRIVATE_SAMPLE, ours(data).name, "gaussian", "adadpsyn"}
    for condition, epsilon, shots, runs in conditions(data):
        if user != "gemma" and not (
            condition.name in compared and epsilon in (*HEADLINE, 4.0) and shots in (0, SHOTS)
        ):
            continue
        for repetition in range(runs if user == "gemma" else min(runs, REPETITIONS)):
            kept = Stored(condition, store) if shots else condition
            yield Trial(kept, epsilon, shots, repetition)


def main() -> None:
    """Measures the missing cells, all of a repetition before the next."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--user", choices=MODELS, default="gemma")
    parser.add_argument("--task", choices=DATA_SETS, action="append")
    parser.add_argument("--records", type=int, help="the first ones alone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024, help="tokens: fewer are faster")
    given = parser.parse_args()
    given.store.mkdir(parents=True, exist_ok=True)
    model = backend(given.user, given.threads, given.context)
    results, name = Shown(RAW), MODELS["gemma"][0]
    if given.records:
        for task in given.task or ("agnews",):
            data = DATA_SETS[task]
            one = experiment(data, given.data, model, name, model)
            one = replace(one, records=one.records[: given.records])
            condition = plain(data, OURS, f"{OURS.name}, {given.records} records")
            evaluate(one, [Trial(Stored(data.told(condition), given.store), 1.0)], results)
        return
    writer = model if given.user == "gemma" else backend("gemma", given.threads, given.context)
    experiments = {
        task: experiment(DATA_SETS[task], given.data, writer, name, model, user_name=MODELS[given.user][0])
        for task in given.task or DATA_SETS
    }
    order = [
        (task, trial) for task in experiments for trial in trials(DATA_SETS[task], given.store, given.user)
    ]
    for task, trial in sorted(order, key=lambda each: each[1].repetition):
        evaluate(experiments[task], [trial], results)


def backend(name: str, threads: int, context: int) -> Batched:
    """One of the models, with its weights in bfloat16, which evaluates many prompts at once."""
    return Batched(str(ROOT / MODELS[name][1]), threads=threads, context_tokens=context)


def experiment(
    data: DataSet,
    folder: Path,
    writer: LogprobBackend,
    writer_name: str,
    user: Batched,
    *,
    user_name: str = MODELS["gemma"][0],
) -> Experiment:
    """The data of a task, with the first test items."""
    return Experiment(
        task=data.task,
        records=dpf.read_records(folder / f"{data.train}.jsonl.gz"),
        test=dpf.read_records(folder / f"{data.test}.jsonl.gz")[:ITEMS],
        writer=writer,
        writer_name=writer_name,
        delta=DELTA,
        user=user,
        user_name=user_name,
        labels=data.labels,
        confidential=False,  # public benchmarks
    )


class Shown(Results):
    """Results that print one line of progress for each new cell."""

    def add(self, cell: Cell) -> None:
        """See `Results.add`."""
        super().add(cell)
        hidden = ("outcomes", "uncalibrated", "batch_calibrated", "population", "description")
        line = {name: value for name, value in cell.as_dict().items() if name not in hidden}
        print(json.dumps(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
