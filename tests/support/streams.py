"""Answers of block backends, compared bit by bit, and the tokens that real models evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from dpfewshot.backends.hugging_face import HuggingFaceStreams
from dpfewshot.backends.llama_cpp.model import KVStreams
from dpfewshot.backends.streams.pool import FULL_DUMMY


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


@contextmanager
def evaluated() -> Iterator[SimpleNamespace]:
    """Count the tokens of prefixes and prompts that real models evaluate within, and those of dummies."""
    count, lock = SimpleNamespace(tokens=0, dummies=0), Lock()

    def add(tokens: int, dummies: int) -> None:
        with lock:  # lanes count at the same time
            count.tokens += tokens
            count.dummies += dummies

    def counting(kind: Any) -> Any:
        extend, step = kind.extend, kind.step

        def extend_counted(self: Any, stream: int, start: int, tokens: Any) -> Any:
            add(*((0, len(tokens)) if stream == FULL_DUMMY else (len(tokens), 0)))
            return extend(self, stream, start, tokens)

        def step_counted(self: Any, first: int, tokens: Any, positions: Any, active: int) -> Any:
            add(active, len(tokens) - active)
            return step(self, first, tokens, positions, active)

        return patch.multiple(kind, extend=extend_counted, step=step_counted)

    with counting(KVStreams), counting(HuggingFaceStreams):
        yield count
