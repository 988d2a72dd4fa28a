"""Several demonstrations at once on one host, for bench/backends.py: in one process, and in several."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import dpfewshot as dpf
from bench.backends_inputs import Options, loaded
from bench.backends_speed import spread, verdict
from dpfewshot.backends import LlamaCpp

LABELS = ("Location", "Number", "Person", "Entity")
"""One demonstration of each."""

PROMPTS, TOKENS = 10, (4, 8)
"""M, and T of demonstrations with a fresh draw every token, and with one draw."""

TOGETHER_TARGET = 0.9


@dataclass(frozen=True)
class Way:
    """A way to generate four demonstrations.

    Attributes:
        name: as it is printed.
        processes: each generates an equal share.
        calls: calls of `generate` at once in each process.
        threads: of each process; None for the default.
    """

    name: str
    processes: int
    calls: int
    threads: int | None = None


ONE, FOUR = "one process, one call after another", "one process, four calls at once"
WAYS = (
    Way(ONE, 1, 1),
    Way(FOUR, 1, 4),
    Way("two processes, one thread each", 2, 1, threads=1),
    Way("two processes, default threads", 2, 1),
)

_backend: LlamaCpp
_records: list[dpf.Record]


def together(options: Options) -> Iterator[str]:
    """Tokens a second of four demonstrations, by way and kind of draw."""
    yield "## Several demonstrations at once on one host\n"
    yield TEXT
    with ExitStack() as stack:
        pools = {
            way: [stack.enter_context(_worker(way, options)) for _ in range(way.processes)] for way in WAYS
        }
        for tokens, every in ((TOKENS[0], 1), (TOKENS[1], TOKENS[1])):
            speeds: dict[str, list[float]] = {way.name: [] for way in WAYS}
            for number in range(-1, options.rounds):
                for way in WAYS if number % 2 else reversed(WAYS):
                    found = _tokens_a_second(pools[way], way.calls, tokens, every)
                    if number >= 0:
                        speeds[way.name].append(found)
                print(f"together: R = {every}, round {number}: {speeds}", file=sys.stderr)
            yield from _table(speeds, "a fresh draw every token" if every == 1 else "one draw (R = T)")


def _table(speeds: dict[str, list[float]], draws: str) -> Iterator[str]:
    yield f"| {draws} | tokens a second | times one call after another | target | |"
    yield "|---|---|---|---|---|"
    for name, found in speeds.items():
        ratios = [one / alone for one, alone in zip(found, speeds[ONE], strict=True)]
        holds = verdict(statistics.median(ratios) >= TOGETHER_TARGET)
        target = f"at least {TOGETHER_TARGET} | {holds}" if name == FOUR else "|"
        yield f"| {name} | {spread(found)} | {spread(ratios)} | {target} |"
    yield ""


def _worker(way: Way, options: Options) -> ProcessPoolExecutor:
    """A process that has loaded the model."""
    threads = options.threads if way.threads is None else way.threads
    arguments = (options.data, Options(options.data, options.rounds, threads))
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=_load, initargs=arguments)


def _load(data: Path, options: Options) -> None:
    global _backend, _records
    _backend, _records = loaded(options, kept_prompts=15), dpf.read_records(data / "trec.train.jsonl.gz")


def _tokens_a_second(pools: Sequence[ProcessPoolExecutor], calls: int, tokens: int, every: int) -> float:
    """The released tokens of all processes by the time that the last one takes."""
    for started in [pool.submit(int) for pool in pools]:
        started.result()
    before = time.perf_counter()
    released: list[Future[int]] = [
        pool.submit(_generate, LABELS[share :: len(pools)], calls, tokens, every)
        for share, pool in enumerate(pools)
    ]
    return sum(future.result() for future in released) / (time.perf_counter() - before)


def _generate(labels: Sequence[str], calls: int, tokens: int, every: int) -> int:
    synthesizer = dpf.Synthesizer(
        dpf.tasks.TREC,
        _records,
        _backend,
        budget=dpf.PrivacyBudget(epsilon=4, delta=1e-5),
        prompts_per_draw=PROMPTS,
        max_tokens=tokens,
        tokens_per_draw=every,
        labels=list(labels),
        sampling="fixed-size",  # a draw of more prompts than are kept is read again for every token
    )
    with ThreadPoolExecutor(calls) as threads:
        return sum(one.token_count for one in threads.map(synthesizer.generate, labels))


TEXT = f"""Four demonstrations of TREC, one a label, M = {PROMPTS}, from the constructor to the last text; models are loaded before. T = {TOKENS[0]} with a fresh draw every
token, T = {TOKENS[1]} with one draw. All ways took turns, with draws of a fixed size. The package tells libgomp's threads to sleep early at barriers.
"""
