"""Whether steps of a fixed shape give a prompt the same bits in any company, found on the loaded model."""

from __future__ import annotations

import hashlib

from dpfewshot.backends.conformance import Finding, check_block_invariance
from dpfewshot.backends.protocol import BlockBackend

VERSION = 1
"""Counts up when the check changes, so that what an older one found is not believed."""

LONGEST = 5
"""Tokens of the longest suffix. A step has one token a prompt: its shape does not depend on it."""

STEPS = 3
"""Tokens that the prompts are continued with."""

_STRIDE = 3  # neighbours differ in length


def check_steps(backend: BlockBackend, *, context_tokens: int, decode_batch: int) -> Finding:
    """Compare the bits of prompts that fill one step with theirs in other seats, groups and company.

    The prompts are random tokens, the same ones every time, and the steps those of a generation: in its
    streams, with its dummies.

    Args:
        backend: keeps a stream a prompt, and takes steps for `decode_batch` of them.
        context_tokens: the longest prompt.
        decode_batch: streams of a step, one of them a dummy.
    """
    size = backend.vocabulary_size
    longest = max(1, min(LONGEST, context_tokens - STEPS - 2))  # with a prefix, and a token in front of it
    prefix, *suffixes = (
        _random_tokens(f"prompt {row}", 1 + row * _STRIDE % longest, size) for row in range(decode_batch)
    )
    return check_block_invariance(
        backend, prefix, suffixes, _random_tokens("released", STEPS, size), support=()
    )


def _random_tokens(name: str, count: int, vocabulary_size: int) -> list[int]:
    digests = (hashlib.sha256(f"{name}, {place}".encode()).digest() for place in range(count))
    return [int.from_bytes(digest[:8]) % vocabulary_size for digest in digests]
