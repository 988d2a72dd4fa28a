"""Answers of block backends, compared bit by bit."""

from __future__ import annotations


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def answers(backend, prefix, suffixes, released, **options):
    """A block's answers at first and after each released token."""
    block = backend.open_block(prefix, suffixes, len(released) + 1, **options)
    try:
        found = [block.next_token_logprobs()]
        for token in released:
            block.append(token)
            found.append(block.next_token_logprobs())
    finally:
        block.close()
    return found
