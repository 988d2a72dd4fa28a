"""Seconds and model tokens a demonstration, at ε = 1, all ways in turns: lines of kind "speed".

Tang et al.'s and AdaDPSyn's published code asks a server for each prompt and token, on a fresh draw a token. Here it
queries a real llama-server with its defaults: four slots and the prompt cache. One token in the middle of the text
stands for all, as a step's work grows evenly. Ours runs whole. The released tokens are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from bench.asking import LABELS, InProcess, Inputs, Server
from bench.peers.page import ADADPSYN_WAY, AGREEING_WAY, OURS_WAY, SAME_NOISE_WAY, TANG_WAY, Line
from bench.utility import DATA_SETS, DELTA, MODELS, ROOT, DataSet
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.backends import LlamaCpp
from dpfewshot.backends.machine import usable_processors
from dpfewshot.mechanisms.adadpsyn import published

ROUNDS = 2
EPSILON = 1.0
MODEL = ROOT / f"{MODELS['gemma'][1]}.gguf"
CONTEXT = 512
KEPT_PROMPTS = 256
"""Ours keeps every prompt of a draw from token to token: the largest M is 216."""
SLOTS = 4

Cost: TypeAlias = tuple[float, int]
"""Seconds and tokens of a demonstration."""

Way: TypeAlias = tuple[tuple[int, int], Callable[[int], Cost]]
"""M and N, and what makes one demonstration for the round of a number."""


def measure(data: Path, _: Path) -> Iterator[Line]:
    """All ways of all data sets, round by round; ours and Tang et al.'s run once before, to warm up.

    No two runs have the same draw: the server keeps prompts that it has seen.
    """
    threads = usable_processors()
    with (
        LlamaCpp(MODEL, context_tokens=CONTEXT, threads=threads, kept_prompts=KEPT_PROMPTS) as process,
        closing(Server(MODEL, SLOTS, threads, cache_prompt=True)) as server,
    ):
        for task, name in zip(("trec", "agnews"), LABELS, strict=True):
            ways = ways_of(
                DATA_SETS[task], Inputs(name, data, process, DATA_SETS[task].max_tokens), process, server
            )
            for way in (TANG_WAY, OURS_WAY):
                ways[way][1](ROUNDS)
            for number in range(ROUNDS):
                for way in ways if number % 2 else reversed(ways):
                    (prompts, records), run = ways[way]
                    seconds, tokens = run(number)
                    yield {
                        "kind": "speed",
                        "peer": way,
                        "task": task,
                        "round": number,
                        "seconds": round(seconds, 3),
                        "tokens": tokens,
                        "prompts": prompts,
                        "records_per_prompt": records,
                        "max_tokens": DATA_SETS[task].max_tokens,
                        "epsilon": EPSILON,
                        "delta": DELTA,
                        "model": MODELS["gemma"][0],
                        "turns": "servers",
                    }


def ways_of(data: DataSet, inputs: Inputs, process: LlamaCpp, server: Server) -> dict[str, Way]:
    """Each way with the sizes of its accuracy. The draws of a way on the server are those of its place."""
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

    def by_server(size: tuple[int, int], place: int) -> Callable[[int], Cost]:
        def run(number: int) -> Cost:
            step = server.fresh(
                inputs, inputs.draw(place * (ROUNDS + 1) + number, *size), data.max_tokens // 2
            )
            return step.seconds * data.max_tokens, step.evaluated * data.max_tokens

        return run

    def by_ours(size: tuple[int, int]) -> Callable[[int], Cost]:
        def run(number: int) -> Cost:
            steps = InProcess(process).block(inputs, inputs.draw(number, *size), data.max_tokens)
            return sum(step.seconds for step in steps), sum(step.evaluated for step in steps)

        return run

    served = {
        way: (size, by_server(size, place)) for place, (way, size) in enumerate(asking.items(), start=1)
    }
    return served | {way: (size, by_ours(size)) for way, size in ours.items()}


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
