"""The check that a prompt's answer does not depend on how much else is asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dpfewshot.backends.conformance.findings import Comparison, Finding
from dpfewshot.backends.conformance.samples import LONG_TOKENS
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens

CALLS, CALL = 4, 17
"""Threads that ask at once, and prompts that each asks for in one call: 68 sequences in all."""


def check_load(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """A prompt has the bits that it has alone while several threads ask for crowds, each with a long prompt.

    A row of NaN that comes of a queue, a quota or a time limit shows here: such a null depends on which
    other records were drawn. What a server does when it is slow or refuses work must be tried on it.

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
