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
    """A prompt of a block has the same bits after every token, whoever else is in the block, and wherever.

    Compares the block of all prompts with the block in reverse order, with blocks of every other
    prompt and of single ones, and with one that is open beside another. Every step is asked for the whole
    vocabulary and for a support, as generations ask.

    Args:
        backend: the backend.
        prefix: public token ids that the prompts begin with.
        suffixes: what follows, at least two, of mixed lengths.
        released: the tokens that the block is continued with.
        support: None for some hundred tokens; () where a support is only cut from the whole.
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
    """A block says about what whole prompts say: every probability within `tolerance`.

    The bits may differ: a block evaluates the same tokens in other calls, and quantised models amplify
    how each kernel rounds (0.046 with SmolLM2-135M Q4_1; a token in a wrong place gives 0.97).
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
    """The block's answers: at first, and after each released token; for all tokens, and for a support."""
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
