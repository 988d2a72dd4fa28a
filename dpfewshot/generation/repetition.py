"""Tokens that would repeat what a text has said: a rule against loops (`Task.no_repeat_ngram_size`)."""

from __future__ import annotations

from collections.abc import Sequence


def repeating(tokens: Sequence[int], size: int) -> frozenset[int]:
    """The tokens that would end an n-gram which the tokens already have.

    Args:
        tokens: released so far.
        size: n ≥ 2.

    Example:
        >>> sorted(repeating([1, 2, 3, 1, 2, 4, 1, 2], 3))
        [3, 4]
    """
    last = list(tokens[len(tokens) - size + 1 :])
    starts = range(len(tokens) - size + 1)
    return frozenset(tokens[at + size - 1] for at in starts if list(tokens[at : at + size - 1]) == last)
