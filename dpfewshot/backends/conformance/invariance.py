"""Checks that a prompt's answer is a function of that prompt alone, in separate calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dpfewshot.backends.conformance.findings import Comparison, Finding
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens

SMALL = 17
"""Batches of up to this many prompts are tested in every rotation."""

CROWD = 65
"""Prompts of the largest batch: vLLM's batch-invariant mode has known faults from 44 to 65 on."""

THREADS = 4
"""Threads that ask at once in `check_concurrency`."""


def check_batch_invariance(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt has the same bits alone, anywhere in small and large batches, and after other work.

    Evaluates about 370 + 3 n prompts for n of 17 or more.

    Args:
        backend: the backend.
        prompts: n public prompts of mixed lengths.
    """
    alone = [backend.next_token_logprobs([prompt]) for prompt in prompts]
    comparison = Comparison()
    for batch in _batches(len(prompts)):
        answer = backend.next_token_logprobs([prompts[index] for index in batch])
        comparison.add(np.concatenate([alone[index] for index in batch]), answer)
    for before, prompt in list(zip(alone, prompts, strict=True))[::4]:
        comparison.add(before, backend.next_token_logprobs([prompt]))
    return comparison.finding("batch invariance")


def check_prefix_reuse(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt has the same bits after its prefix, its extension, one with half of it, and itself.

    Caches of earlier prompts fail here: a reused prefix is computed in calls of a different shape.

    Args:
        backend: the backend.
        prompts: at least two public prompts, the longest of at least two tokens.
    """
    prompt, other = max(prompts, key=len), min(prompts, key=len)
    half = len(prompt) // 2
    befores = (prompt[:-1], [*prompt, prompt[0]], [*prompt[:half], *other], prompt)
    backend.next_token_logprobs([other])
    expected = backend.next_token_logprobs([prompt])
    comparison = Comparison()
    for before in befores:
        backend.next_token_logprobs([other])
        backend.next_token_logprobs([before])
        comparison.add(expected, backend.next_token_logprobs([prompt]))
    return comparison.finding("prefix reuse")


def check_concurrency(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that prompts have the same bits from several threads at once as one after the other.

    Args:
        backend: the backend.
        prompts: public prompts; each thread asks for all of them, starting with a different one.
    """
    alone = [backend.next_token_logprobs([prompt]) for prompt in prompts]
    start = threading.Barrier(THREADS)

    def ask(turn: int) -> list[tuple[int, Logprobs]]:
        start.wait()
        places = [(place + turn) % len(prompts) for place in range(len(prompts))]
        return [(place, backend.next_token_logprobs([prompts[place]])) for place in places]

    comparison = Comparison()
    with ThreadPoolExecutor(THREADS) as threads:
        for answers in threads.map(ask, range(THREADS)):
            for place, answer in answers:
                comparison.add(alone[place], answer)
    return comparison.finding("concurrency")


def _batches(count: int) -> list[Sequence[int]]:
    """Return batches of prompt indices: small ones in every rotation, all in two orders, and a large one."""
    everyone = range(count)
    batches: list[Sequence[int]] = [everyone, everyone[::-1], [place % count for place in range(CROWD)]]
    for size in (2, 3, SMALL):
        if size <= count:
            batches += [[(place + turn) % size for place in range(size)] for turn in range(size)]
    return batches
