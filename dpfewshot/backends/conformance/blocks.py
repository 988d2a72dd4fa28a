"""Checks of blocks: prompts that grow by the same released tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfewshot.backends.conformance.answers import WIDE
from dpfewshot.backends.conformance.findings import Comparison, Finding
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens, open_block


def check_block_invariance(
    backend: LogprobBackend,
    prefix: Tokens,
    suffixes: Sequence[Tokens],
    released: Tokens,
    *,
    support: Tokens | None = None,
) -> Finding:
    """Check that a block's prompt has the same bits after every token, in any place and with any neighbours.

    Compares the block of all prompts with the block in reverse order, with blocks of every second prompt and
    of single prompts, and with itself beside another open block. Every step asks for the whole vocabulary and
    for a support, as generations do.

    Args:
        backend: the backend.
        prefix: public token ids that the prompts begin with.
        suffixes: the rest of each prompt: at least two, of mixed lengths.
        released: the tokens that continue the block.
        support: the support to ask for; None for about 100 tokens, () to ask for the whole vocabulary only.
    """
    everyone = range(len(suffixes))
    if support is None:
        support = range(0, backend.vocabulary_size, max(1, backend.vocabulary_size // WIDE))
    expected = _history(backend, prefix, suffixes, released, support)
    comparison = Comparison()
    selections = [everyone[::-1], everyone[::2], *([index] for index in (0, len(suffixes) - 1))]
    for selection in selections:
        found = _history(backend, prefix, [suffixes[index] for index in selection], released, support)
        for before, after in zip(expected, found, strict=True):
            comparison.add(before[list(selection)], after)
    neighbour = open_block(backend, prefix, suffixes[-1:], len(released) + 1)
    try:
        neighbour.next_token_logprobs()
        for before, after in zip(
            expected, _history(backend, prefix, suffixes, released, support), strict=True
        ):
            comparison.add(before, after)
    finally:
        neighbour.close()
    return comparison.finding("block invariance")


def check_block_agreement(
    backend: LogprobBackend,
    prefix: Tokens,
    suffixes: Sequence[Tokens],
    released: Tokens,
    *,
    tolerance: float = 0.1,
) -> Finding:
    """Check that a block's probabilities are within `tolerance` of those of whole prompts.

    The bits may differ: a block evaluates the same tokens in different calls, and quantised models amplify
    the kernels' rounding (0.046 with SmolLM2-135M Q4_1; a misplaced token gives 0.97).
    """
    histories = _history(backend, prefix, suffixes, released)
    worst = 0.0
    for count, answer in enumerate(histories):
        prompts = [[*prefix, *suffix, *released[:count]] for suffix in suffixes]
        worst = max(worst, float(np.abs(np.exp(backend.next_token_logprobs(prompts)) - np.exp(answer)).max()))
    return Finding("block agreement", worst <= tolerance, f"probabilities differ by up to {worst:.2g}")


def _history(
    backend: LogprobBackend,
    prefix: Tokens,
    suffixes: Sequence[Tokens],
    released: Tokens,
    support: Tokens = (),
) -> list[Logprobs]:
    """Return the block's answers before and after each released token, for all tokens and for a support."""
    block = open_block(backend, prefix, suffixes, len(released) + 1)
    answers = []
    try:
        for step in range(len(released) + 1):
            if step > 0:
                block.append(released[step - 1])
            if support:
                answers.append(block.next_token_logprobs(support))
            answers.append(block.next_token_logprobs())
    finally:
        block.close()
    return answers
