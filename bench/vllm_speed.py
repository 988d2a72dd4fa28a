"""Measures running vLLM servers beside models in process: `python -m bench.vllm_speed FOLDER --server NAME=URL`.

FOLDER holds the packaged model in bfloat16 (`bench.models.unpack`), which every server serves as "smollm2"
(docs/how-to/servers.md). All answer the same draws, in turn, so that a machine that slows down slows all; then all make
the same demonstration.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable

import torch

from bench.backends import spread
from dpfewshot import PrivacyBudget, Record, Settings, Synthesizer, Task
from dpfewshot.backends import HuggingFace, LlamaCpp, LogprobBackend, OpenAICompatible, packaged_model_path
from dpfewshot.backends.conformance import SAMPLE_TEXT

SUPPORT = list(range(100))
TASK = Task(name="t", instruction="A question.", label_field="Kind", text_field="Text", labels=("place",))
Ask = Callable[[list[list[int]]], object]


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--server", action="append", default=[], help="NAME=URL")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=120, help="the length of a prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=1, help="of those in process; vLLM keeps one core free"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    backends: dict[str, LogprobBackend] = {
        "llama.cpp in process, Q4_1": LlamaCpp(
            packaged_model_path(), context_tokens=512, threads=given.threads
        ),
        "llama.cpp in process, bf16": LlamaCpp(
            packaged_model_path(), context_tokens=512, threads=given.threads, weights="bf16"
        ),
        "transformers in process, bf16": HuggingFace(
            given.folder, device="cpu", dtype="bfloat16", context_tokens=512
        ),
    }
    for name, url in (server.split("=", 1) for server in given.server):
        backends[name] = OpenAICompatible(url, "smollm2", timeout=600)
        print(name, backends[name].describe(), flush=True)
    asks: dict[str, Ask] = {name: _asking(backend) for name, backend in backends.items()}
    _draws(asks, next(iter(backends.values())), given.prompts, given.tokens, given.rounds)
    _demonstrations(backends, given.prompts, given.rounds)


def _asking(backend: LogprobBackend) -> Ask:
    return lambda prompts: backend.next_token_logprobs(prompts, SUPPORT)


def _draws(asks: dict[str, Ask], tokenizer: LogprobBackend, prompts: int, tokens: int, rounds: int) -> None:
    words = tokenizer.tokenize(SAMPLE_TEXT) * tokens
    seconds: dict[str, list[float]] = {name: [] for name in asks}
    for number in range(rounds + 1):
        source = random.Random(number)
        draw = [source.sample(words, tokens) for _ in range(prompts)]
        for name, ask in asks.items():
            start = time.perf_counter()
            ask(draw)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    print(f"{os.cpu_count()} cores; a draw of {prompts} prompts of {tokens} tokens; {rounds} rounds")
    _table(seconds, "prompt tokens a second", lambda each: prompts * tokens / each)


def _demonstrations(backends: dict[str, LogprobBackend], prompts: int, rounds: int) -> None:
    words = SAMPLE_TEXT.split()
    records = [Record(" ".join(words[place % 9 :]), "place") for place in range(50)]
    seconds: dict[str, list[float]] = {name: [] for name in backends}
    for number in range(rounds):
        for name, backend in backends.items():
            synthesizer = Synthesizer(
                TASK,
                records,
                backend,
                budget=PrivacyBudget(epsilon=8, delta=1e-3),
                max_tokens=3,
                settings=Settings(prompts_per_draw=prompts, tokens_per_draw=1, allow_batch_variance=True),
            )
            start = time.perf_counter()
            made = synthesizer.generate("place")
            seconds[name].append((time.perf_counter() - start) / made.token_count)
        print(f"round {number}", file=sys.stderr)
    print(f"A demonstration: M = {prompts}, R = 1; seconds a token; {rounds} rounds")
    _table(seconds, "seconds a token", lambda each: each)


def _table(seconds: dict[str, list[float]], unit: str, shown: Callable[[float], float]) -> None:
    base = next(iter(seconds.values()))
    print(f"| | {unit} | times as long as the first |\n|---|---|---|")
    for name, found in seconds.items():
        ratios = [each / first for each, first in zip(found, base, strict=True)]
        print(f"| {name} | {spread([shown(each) for each in found])} | {spread(ratios)} |")


if __name__ == "__main__":
    main()
