"""A backend that keeps streams, over a model that only adds numbers up; and what real models evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any
from unittest.mock import patch

import numpy as np

from dpfewshot.backends.hugging_face import HuggingFaceStreams
from dpfewshot.backends.llama_cpp.model import KVStreams
from dpfewshot.backends.streams.backend import StreamBackend
from dpfewshot.backends.streams.pool import FULL_DUMMY


class Model:
    vocabulary_size = 50
    end_token_ids = frozenset({0})
    bos = longest = None
    most_streams = 1000

    def __init__(self, during: Any) -> None:
        self.during = during
        self.freed = False
        self.faults: list[str] = []
        self.evaluated: list[int] = []

    def tokenize(self, text: str) -> list[int]:
        return [len(text) % 50]

    def open_streams(self, streams: int, tokens: int, lanes: int) -> Streams:
        del tokens, lanes
        return Streams(streams, self, self.during)

    def log_softmax(self, logits: np.ndarray, columns: Any) -> np.ndarray:
        return logits[columns]

    def close(self) -> None:
        self.freed = True


class Streams:
    """One context: it says when it computes with freed memory."""

    cells = 256
    failed = False

    def __init__(self, streams: int, model: Model, during: Any) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(streams)]
        self.model, self.during, self.freed = model, during, False

    def copy(self, source: int, target: int) -> None:
        self.tokens[target] = list(self.tokens[source])

    def rewind(self, stream: int, length: int) -> None:
        del self.tokens[stream][length:]

    def extend(self, stream: int, start: int, tokens: list[int]) -> np.ndarray:
        self.during()
        if self.freed or self.model.freed:
            self.model.faults.append("used after it was freed")
        self.model.evaluated.append(len(tokens))
        self.tokens[stream] = self.tokens[stream][:start] + list(tokens)
        return np.arange(50.0) * sum(self.tokens[stream])

    def step(self, first: int, tokens: list[int], positions: list[int], active: int) -> list[np.ndarray]:
        return [self.extend(first + index, positions[index], [tokens[index]]) for index in range(active)]

    def close(self) -> None:
        self.freed = True


class Toy(StreamBackend[Any]):
    """Answers at once; its model notes how many tokens each call evaluates."""

    def __init__(self, during: Any = lambda: None, *, kept_prompts: int = 0) -> None:
        self.model = Model(during)
        super().__init__(self.model, context_tokens=64, kept_prompts=kept_prompts, decode_batch=1, lanes=3)


@dataclass
class Evaluated:
    """Tokens of prefixes and prompts, and those of dummies."""

    tokens: int = 0
    dummies: int = 0


@contextmanager
def evaluated() -> Iterator[Evaluated]:
    """Count the tokens that real models evaluate within."""
    count, lock = Evaluated(), Lock()

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
