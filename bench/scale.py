"""Time and memory against n, labels, M, T, R, lengths, vocabulary, workers: into docs/results/raw/scale.json.

    python -m bench.scale model | own | records | memory | workers | replicas | cost | plans DATA   # each some minutes
    python -m bench.scale_page > docs/results/scale.md

`model` measures the packaged model, `own` everything but a model. The values of a variable take turns. Seconds are
those of the processor, with one thread: other work on the machine hardly changes them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from typing import Any

import dpfewshot as dpf
from bench.scale_fit import RAW, recorded
from dpfewshot.backends.protocol import closing_block
from dpfewshot.runtime.files import write_whole

THREADS = 1
TEXT = "Where is the highest mountain of the country that lies between the two large rivers ? "
SHORT, LENGTH = 10, 40
"""Tokens after the prefix."""


def main(part: str, *words: str) -> None:
    """Measure one part, and keep the others' figures."""
    from bench import scale_own, scale_runs

    parts: dict[str, Callable[..., dict[str, Any]]] = {
        "model": model,
        "own": scale_own.own,
        "records": scale_own.records,
        "memory": scale_own.memory,
        "workers": scale_runs.workers,
        "replicas": scale_runs.replicas,
        "plans": scale_runs.plans,
        "cost": scale_runs.cost,
    }
    before = os.getloadavg()[0]
    keep(parts[part](*words) | {f"load before {part}": round(before, 1)})


def keep(found: dict[str, Any]) -> None:
    """Write the new figures beside the others."""
    write_whole(RAW, json.dumps(recorded() | found, indent=1) + "\n")


def series(
    variable: str,
    setup: str,
    values: Iterable[int],
    measure: Callable[[int], float],
    *,
    unit: str = "s",
    rounds: int = 2,
) -> dict[str, Any]:
    """Measure the two least values once, untimed, for what is done once a process; then all in turns."""
    values = list(values)
    for value in values[:2]:
        measure(value)
    found: dict[int, list[float]] = {value: [] for value in values}
    for _ in range(rounds):
        for value in values:
            found[value].append(round(measure(value), 5))
            print(variable, value, found[value], flush=True)
    return {"variable": variable, "unit": unit, "setup": setup, "points": list(found.items())}


def model() -> dict[str, Any]:
    """The packaged model: M, prompt length, T and R."""
    path = dpf.backends.packaged_model_path()
    with dpf.backends.LlamaCpp(path, context_tokens=768, kept_prompts=45, threads=THREADS) as backend:
        asked = Asked(backend)
        of = f"{backend.describe()}; prompts of {LENGTH} tokens after a prefix of {len(asked.prefix)}"
        return {
            "M": series("M", f"{of}; one answer", (1, 3, 10, 30, 100), lambda m: asked.draws(m, 1, 1)),
            "length": series(
                "tokens of a prompt after the prefix",
                f"{backend.describe()}; M = 10, one answer",
                (5, 15, 50, 150, 500),
                lambda length: asked.draws(10, 1, 1, length),
            ),
            "T": series("T", f"{of}; M = 10, R = T", (1, 3, 10, 30, 100), lambda t: asked.draws(10, t, t)),
            "R": series(
                "draws of a demonstration, T/R",
                f"{backend.describe()}; prompts of {SHORT} tokens before the first draw; M = 2, T = 100",
                (1, 3, 10, 33, 100),
                lambda draws: asked.draws(2, 100, -(-100 // draws), SHORT),
            ),
        }


class Asked:
    """The prompts of a demonstration's draws, and the time of their answers."""

    def __init__(self, backend: dpf.backends.LlamaCpp) -> None:
        self.backend = backend
        self.words = backend.tokenize(TEXT)
        self.prefix = self.words + backend.tokenize("Answer Type: Location\nText:")

    def draws(self, prompts: int, tokens: int, every: int, length: int = LENGTH) -> float:
        """Processor seconds for M prompts of so many tokens, T tokens of which `every` share a draw."""
        released: list[int] = []
        started = time.process_time()
        while len(released) < tokens:
            suffixes = [
                [*islice(cycle(self.words), place, place + length), *released] for place in range(prompts)
            ]
            steps = min(every, tokens - len(released))
            with closing_block(self.backend, self.prefix, suffixes, steps) as block:
                for step in range(steps):
                    block.next_token_logprobs(range(100))
                    released.append(self.words[len(released) % len(self.words)])
                    if step + 1 < steps:
                        block.append(released[-1])
        return time.process_time() - started


if __name__ == "__main__":
    main(*sys.argv[1:])
