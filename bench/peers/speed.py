"""Seconds and model tokens a demonstration, at ε = 1, all ways in turns: lines of kind "speed".

Tang et al.'s and AdaDPSyn's published code asks a server for each prompt and token, on a fresh draw a token. Here it
queries a real llama-server with its defaults: four slots and the prompt cache. One token in the middle of the text
stands for all, as a step's work grows evenly. The LlamaIndex pack asks alike, and runs its first three tokens: the
prompts of later ones are longer, so this favours it. Ours, Private Evolution and invink run whole, invink in its own
environment with the model loaded before. The released tokens of Tang et al., AdaDPSyn and ours are given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench.backends_inputs import DATA_SETS as INPUTS
from bench.backends_inputs import Inputs
from bench.backends_ways import InProcess, Server
from bench.batched import Batched
from bench.peers.embedding import Embedder, fetched
from bench.peers.environments import INVINK, PACK
from bench.peers.evolution import PrivateEvolution
from bench.peers.legacy import Legacy
from bench.peers.packages import TIMEOUT, ink_call, ink_request, pack_request
from bench.peers.raw import Line, versions
from bench.utility import DELTA, MODELS
from bench.utility_data import DATA_SETS, DataSet
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.backends import LlamaCpp
from dpfewshot.backends.machine import usable_processors
from dpfewshot.evaluation.conditions import Request
from dpfewshot.mechanisms.adadpsyn_presets import published

ROUNDS = 2
EPSILON = 1.0
MODEL = Path(__file__).parents[2] / f"{MODELS['gemma'][1]}.gguf"
CONTEXT = 512
KEPT_PROMPTS = 256
"""Ours keeps every prompt of a draw from token to token: the largest M is 216."""
SLOTS = 4
PACK_TOKENS = 3
INK_BATCH = 8
"""The default of invink."""

TANG_WAY = "Tang et al., as published"
ADADPSYN_WAY = "AdaDPSyn, as published"
OURS_WAY = "dpfewshot"
AGREEING_WAY = "dpfewshot, 2 M"
SAME_NOISE_WAY = "dpfewshot, Gaussian, M raised to the noise of Tang et al."
EVOLUTION_WAY = "Private Evolution"
PACK_WAY = "LlamaIndex pack"
INK_WAY = "InvisibleInk (invink)"

SERVERS, PACKAGES = "servers", "packages"
"""What took turns with ours in one run."""

Cost: TypeAlias = tuple[float, int]
"""Seconds and tokens of a demonstration."""


@dataclass(frozen=True)
class Task:
    """One data set's ways.

    Attributes:
        name: as in bench/utility_data.py.
        sizes: M and N of each way.
        ways: each makes one demonstration for the round of a number.
    """

    name: str
    sizes: dict[str, tuple[int, int]]
    ways: dict[str, Callable[[int], Cost]]


@dataclass(frozen=True)
class Machinery:
    """What the ways of all data sets share."""

    data: Path
    store: Path
    process: LlamaCpp
    server: Server


def measure_servers(data: Path, store: Path) -> Iterator[Line]:
    """Tang et al., AdaDPSyn and ours, in turns."""
    yield from in_turns(data, store, SERVERS, server_ways)


def measure_packages(data: Path, store: Path) -> Iterator[Line]:
    """The packages, Private Evolution and ours, in turns."""
    yield from in_turns(data, store, PACKAGES, package_ways)


def in_turns(data: Path, store: Path, turns: str, ways_of: Callable[..., Task]) -> Iterator[Line]:
    """All ways of all data sets, round by round; ours and the first way run once before, to warm up.

    No two runs have the same draw: the server keeps prompts that it has seen.
    """
    threads = usable_processors()
    with ExitStack() as stack:
        process = stack.enter_context(
            LlamaCpp(MODEL, context_tokens=CONTEXT, threads=threads, kept_prompts=KEPT_PROMPTS)
        )
        server = stack.enter_context(closing(Server(MODEL, SLOTS, threads, cache_prompt=True)))
        machinery = Machinery(data, store, process, server)
        for name, inputs in zip(("trec", "agnews"), INPUTS, strict=True):
            task = ways_of(name, Inputs(inputs, data, process, DATA_SETS[name].max_tokens), machinery, stack)
            for way in {TANG_WAY, OURS_WAY} & task.ways.keys():
                task.ways[way](ROUNDS)
            for number in range(ROUNDS):
                for way in task.ways if number % 2 else reversed(task.ways):
                    seconds, tokens = task.ways[way](number)
                    yield line(task, way, number, seconds, tokens) | {"turns": turns}


def line(task: Task, way: str, number: int, seconds: float, tokens: int) -> Line:
    """As stored."""
    prompts, records = task.sizes[way]
    return {
        "kind": "speed",
        "peer": way,
        "task": task.name,
        "round": number,
        "seconds": round(seconds, 3),
        "tokens": tokens,
        "prompts": prompts,
        "records_per_prompt": records,
        "max_tokens": DATA_SETS[task.name].max_tokens,
        "epsilon": EPSILON,
        "delta": DELTA,
        "model": MODELS["gemma"][0],
        "versions": versions(),
    }


def server_ways(name: str, inputs: Inputs, machinery: Machinery, _: ExitStack) -> Task:
    """Those that ask for next tokens, with the sizes of their accuracy."""
    data = DATA_SETS[name]
    preset = published(data.task.name, epsilon=EPSILON)
    asking = {
        TANG_WAY: (data.prompts, data.records_per_prompt),
        ADADPSYN_WAY: (preset.prompts, preset.records_per_prompt),
    }
    ours = {
        OURS_WAY: (data.our_prompts, 1),
        AGREEING_WAY: (2 * data.our_prompts, 1),
        SAME_NOISE_WAY: (prompts_at_the_noise_of_tang(data, inputs.population), 1),
    }
    ways = {
        way: by_server(data, inputs, machinery, size, place)
        for place, (way, size) in enumerate(asking.items(), start=1)
    }
    ways |= {way: by_ours(data, inputs, machinery, size) for way, size in ours.items()}
    return Task(name, asking | ours, ways)


def package_ways(name: str, inputs: Inputs, machinery: Machinery, stack: ExitStack) -> Task:
    """Those that run by themselves, beside ours."""
    data = DATA_SETS[name]
    size = (data.our_prompts, 1)
    legacy = stack.enter_context(closing(Legacy(machinery.server.address)))
    evolution = Evolution(machinery.store)
    ways: dict[str, Callable[[int], Cost]] = {
        OURS_WAY: by_ours(data, inputs, machinery, size),
        PACK_WAY: lambda _: by_the_pack(data, inputs, machinery, legacy),
        INK_WAY: lambda number: by_invink(data, inputs, machinery, number),
        EVOLUTION_WAY: lambda _: evolution.run(data, inputs, machinery.data),
    }
    sizes = {
        OURS_WAY: size,
        PACK_WAY: (data.prompts, data.records_per_prompt),
        INK_WAY: (INK_BATCH - 1, 1),
        EVOLUTION_WAY: (0, 0),
    }
    return Task(name, sizes, ways)


def by_server(
    data: DataSet, inputs: Inputs, machinery: Machinery, size: tuple[int, int], place: int
) -> Callable[[int], Cost]:
    """One request a prompt: the middle token, times T. Its draws are those of its place among the ways."""

    def run(number: int) -> Cost:
        drawn = inputs.draw(place * (ROUNDS + 1) + number, *size)
        step = machinery.server.fresh(inputs, drawn, data.max_tokens // 2)
        return step.seconds * data.max_tokens, step.evaluated * data.max_tokens

    return run


def by_ours(
    data: DataSet, inputs: Inputs, machinery: Machinery, size: tuple[int, int]
) -> Callable[[int], Cost]:
    """One draw a demonstration, all of its tokens."""

    def run(number: int) -> Cost:
        drawn = inputs.draw(number, *size)
        steps = InProcess(machinery.process).block(inputs, drawn, data.max_tokens)
        return sum(step.seconds for step in steps), sum(step.evaluated for step in steps)

    return run


def by_the_pack(data: DataSet, inputs: Inputs, machinery: Machinery, legacy: Legacy) -> Cost:
    """One demonstration of the pack, from its first tokens."""
    records = [record for record in data.records(machinery.data)[0] if record.label == inputs.data_set.label]
    call = {"tokens": PACK_TOKENS, "sigma": 1.0, "prompts": data.prompts, "records": data.records_per_prompt}
    request = pack_request(records, legacy.address, data.task, inputs.data_set.label)
    before = legacy.evaluated
    (answer,) = found_in(PACK.call(machinery.store, request | {"calls": [call]}, TIMEOUT))
    whole = data.max_tokens / PACK_TOKENS
    return answer["seconds"] * whole, round((legacy.evaluated - before) * whole)


def by_invink(data: DataSet, inputs: Inputs, machinery: Machinery, number: int) -> Cost:
    """One text of the package, with its default batch."""
    texts = [
        record.text for record in data.records(machinery.data)[0] if record.label == inputs.data_set.label
    ]
    start = (number + 1) * INK_BATCH
    request = ink_request(f"{data.task.instruction} {inputs.data_set.label}") | {
        "calls": [ink_call("one text", texts[start : start + INK_BATCH - 1], data.max_tokens)]
    }
    (answer,) = found_in(INVINK.call(machinery.store, request, TIMEOUT))
    return answer["seconds"] * data.max_tokens / answer["length"], answer["tokens"]


def found_in(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers with seconds; an error ends the measurement."""
    for answer in answers:
        if "error" in answer:
            raise SystemExit(answer["error"])
    return [answer for answer in answers if "seconds" in answer]


def prompts_at_the_noise_of_tang(data: DataSet, population: int) -> int:
    """The least M, in steps of 8, at which one draw has the noise on the mean of Tang et al.'s plan; n at most."""
    size = data.prompts * data.records_per_prompt
    steps = data.max_tokens
    goal = math.sqrt(2) * gaussian_multiplier(size / population, steps) / data.prompts
    return next(
        (
            prompts
            for prompts in range(8, population, 8)
            if math.sqrt(steps) * gaussian_multiplier(prompts / population, 1) / prompts <= goal
        ),
        population,
    )


def gaussian_multiplier(sampling_rate: float, steps: int) -> float:
    """The least certified σ of sampled Gaussian steps."""
    return calibrate(lambda sigma: PoissonGaussian(sampling_rate, sigma, steps), epsilon=EPSILON, delta=DELTA)


class Counted(Batched):
    """A model that counts the tokens that it evaluates."""

    evaluated = 0

    def evaluate(self, cells: Any, tokens: list[list[int]], *rest: Any, **options: Any) -> Any:
        """See `Batched`."""
        self.evaluated += sum(map(len, tokens))
        return super().evaluate(cells, tokens, *rest, **options)


class Evolution:
    """Private Evolution for one demonstration, its records' embeddings included.

    Args:
        store: where the embedder lives; its tokens are not counted.
    """

    def __init__(self, store: Path) -> None:
        threads = usable_processors()
        self._embedder = Embedder(fetched(store), threads)
        folder = Path(__file__).parents[2] / MODELS["gemma"][1]
        self._model = Counted(str(folder), threads=threads, context_tokens=CONTEXT)

    def run(self, data: DataSet, inputs: Inputs, folder: Path) -> Cost:
        """Seconds and tokens, with nothing kept from an earlier run."""
        label = inputs.data_set.label
        records = [record for record in data.records(folder)[0] if record.label == label]
        before, started = self._model.evaluated, time.perf_counter()
        condition = PrivateEvolution(data.max_tokens, self._embedder)
        condition.demonstrations(Request(data.task, records, self._model, (label,), EPSILON, DELTA))
        return time.perf_counter() - started, self._model.evaluated - before
