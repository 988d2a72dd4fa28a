"""Measures replicas of a llama-server on this machine: `python -m bench.replicas MODEL [--prompts 20] [--rounds 5]`.

Each server has one slot, one thread and no prompt cache, as docs/how-to/servers.md starts it. One, two and four of
them are asked for the same draws, in turn, so that a machine that slows down slows all. Prints prompt tokens a second, in
all and for each core that the replicas can use, and compares rows: with equal replicas no bit may move.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from contextlib import ExitStack

import numpy as np

from bench.asking import served
from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.conformance import SAMPLE_TEXT
from dpfewshot.backends.servers.replicas import replica_of

COUNTS = (1, 2, 4)


def main() -> None:
    """Starts the servers, asks, and prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--prompts", type=int, default=20, help="M: prompts of a draw")
    parser.add_argument("--tokens", type=int, default=120, help="the length of a prompt")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with ExitStack() as stack:
        servers = [stack.enter_context(served(given.model, 1, 1)) for _ in range(max(COUNTS))]
        urls = [f"{server}/v1" for server in servers]  # one slot and one thread each
        backends = [
            stack.enter_context(OpenAICompatible(urls[:count], "model", timeout=600, verify=False))
            for count in COUNTS
        ]
        print("\n".join(backend.describe() for backend in backends))
        _measure(backends, given.prompts, given.tokens, given.rounds)


def _measure(backends: list[OpenAICompatible], prompts: int, tokens: int, rounds: int) -> None:
    words = backends[0].tokenize(SAMPLE_TEXT) * tokens
    support = list(range(100))
    speeds: dict[int, list[float]] = {count: [] for count in COUNTS}
    same = True
    for number in range(rounds):
        source = random.Random(number)
        draw = [source.sample(words, tokens) for _ in range(prompts)]
        answers = []
        for count, backend in zip(COUNTS, backends, strict=True):
            start = time.perf_counter()
            answers.append(backend.next_token_logprobs(draw, support))
            speeds[count].append(prompts * tokens / (time.perf_counter() - start))
        same = same and all(np.array_equal(answers[0], each) for each in answers)
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, M = {prompts}, {tokens} tokens a prompt, {rounds} rounds; same bits: {same}")
    print(
        "| replicas | tokens/s | tokens/s a core | times one | share of the fullest replica |\n|---|---|---|---|---|"
    )
    for count in COUNTS:
        speed = statistics.median(speeds[count])
        ratios = sorted(each / one for each, one in zip(speeds[count], speeds[1], strict=True))
        print(
            f"| {count} | {speed:.0f} | {speed / min(count, cores):.0f} | {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) | {_fullest(count, prompts):.2f} |"
        )


def _fullest(count: int, prompts: int) -> float:
    """The mean share of prompts at the replica with the most: 1 / it is the most that replicas can gain."""
    source = random.Random(0)
    draws = [[[source.randrange(10**6)] for _ in range(prompts)] for _ in range(1000)]
    fullest = [max(np.bincount([replica_of(prompt, count) for prompt in draw])) for draw in draws]
    return statistics.mean(map(float, fullest)) / prompts


if __name__ == "__main__":
    main()
