"""Checks on the loaded model that a prompt's bits do not depend on its neighbours in steps and lanes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from dpfewshot.backends.conformance import Finding, check_batch_invariance, check_block_invariance
from dpfewshot.backends.protocol import BlockBackend, LogprobBackend

VERSION = 3
"""Incremented when a check changes, so that verdicts of older checks no longer count."""

WHOLE_PROMPTS = 4
"""Prompts that take turns in the lanes: alone, in pairs, and in a crowd of 65."""

LONGEST = 5
"""Tokens of the longest suffix. The shape of a step, one token per prompt, does not depend on it."""

STEPS = 3
"""How many released tokens continue the prompts."""

LONG = 32
"""Tokens of the shortest of the longer whole prompts: about those of a private prompt behind its prefix."""

TURNS = 4
"""How often each of the longer prompts stands in their crowd."""

_STRIDE = 3  # neighbours differ in length


def check_steps(backend: BlockBackend, *, context_tokens: int, decode_batch: int) -> Finding:
    """Compare the bits of prompts that fill one step with their bits in other streams and among others.

    The prompts are pseudo-random tokens, the same on every run. The steps use the streams and dummies of a
    generation.

    Args:
        backend: a backend that keeps a stream per prompt and steps `decode_batch` streams together.
        context_tokens: the longest prompt.
        decode_batch: streams of a step, one of them a dummy.
    """
    size = backend.vocabulary_size
    longest = max(1, min(LONGEST, context_tokens - STEPS - 2))  # less a prefix, and a token in front of it
    prefix, *suffixes = (
        random_tokens(f"prompt {row}", 1 + row * _STRIDE % longest, size) for row in range(decode_batch)
    )
    return check_block_invariance(
        backend, prefix, suffixes, random_tokens("released", STEPS, size), support=()
    )


def check_lanes(backend: LogprobBackend, *, context_tokens: int) -> Finding:
    """Compare the bits of whole prompts alone with their bits while other lanes evaluate others.

    In old builds of llama.cpp, contexts of one process shared a counter, and could change one another's bits.
    Short prompts and prompts of usual length take turns.

    Args:
        backend: a backend with several lanes.
        context_tokens: the longest prompt.
    """

    def prompts(shortest: int) -> list[list[int]]:
        lengths = [shortest + row * _STRIDE for row in range(WHOLE_PROMPTS)]
        return [
            random_tokens(f"whole {row}", length, backend.vocabulary_size)
            for row, length in enumerate(lengths)
        ]

    finding = check_batch_invariance(backend, prompts(1))
    longer = prompts(max(1, min(LONG, context_tokens - WHOLE_PROMPTS * _STRIDE)))
    alone = np.concatenate([backend.next_token_logprobs([prompt]) for prompt in longer])
    together = backend.next_token_logprobs(longer * TURNS)
    same = together.tobytes() == np.tile(alone, (TURNS, 1)).tobytes()
    return replace(finding, passed=finding.passed and same)


def random_tokens(name: str, count: int, vocabulary_size: int) -> list[int]:
    """Return pseudo-random tokens, the same for the same name: a public prompt."""
    digests = (hashlib.sha256(f"{name}, {place}".encode()).digest() for place in range(count))
    return [int.from_bytes(digest[:8]) % vocabulary_size for digest in digests]
