"""The check that a prompt's answer does not depend on load."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dpfewshot.backends.conformance.findings import Comparison, Finding
from dpfewshot.backends.conformance.samples import LONG_TOKENS
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens

CALLS, CALL = 4, 17
"""Threads that ask at once, and prompts per call of each: 68 sequences in all."""


def check_load(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt has its bits of a call alone while several threads ask for large batches.

    Each batch has one long prompt. A row of NaN caused by a queue, a quota or a time limit fails here: it
    would depend on which other records were drawn. Test a slow or overloaded server itself.

    Args:
        backend: the backend.
        prompts: public prompts of mixed lengths.
    """
    context: int | None = getattr(backend, "context_tokens", None)
    size = LONG_TOKENS if context is None else max(1, min(LONG_TOKENS, context - 2))
    long = [token for prompt in prompts for token in prompt]
    asked = [(long * size)[:size], *prompts]
    alone = [backend.next_token_logprobs([prompt])[0] for prompt in asked]
    start = threading.Barrier(CALLS)

    def ask(turn: int) -> tuple[list[int], Logprobs]:
        places = [1 + (turn + place) % len(prompts) for place in range(CALL)]
        places[turn] = 0
        start.wait()
        return places, backend.next_token_logprobs([asked[place] for place in places])

    comparison = Comparison()
    with ThreadPoolExecutor(CALLS) as threads:
        for places, answer in threads.map(ask, range(CALLS)):
            comparison.add(np.stack([alone[place] for place in places]), answer)
    return comparison.finding("load")
