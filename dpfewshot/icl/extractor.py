"""Extraction: the model writes the label by greedy decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.end_tokens import ending_tokens, text_of
from dpfewshot.backends.protocol import LogprobBackend, failing_as_backend
from dpfewshot.errors import InvalidPlan
from dpfewshot.icl.few_shot import FewShotPrompt, no_answer
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration

_BATCH: Final = 30
"""Texts of a batch: two groups of parallel streams."""


class Extractor:
    """Extracts labels by greedy decoding up to the end of the line.

    Args:
        task: a task, or the prompt's format.
        backend: any language model. It sees the texts, and needs no further trust.
        demonstrations: released demonstrations in prompt order.
        max_tokens: the most tokens of a label, at least 1.

    Attributes:
        format: the prompt's wording.

    Raises:
        InvalidTask: a demonstration has an unknown label.
        InvalidPlan: `max_tokens` is below 1, or the demonstrations exceed the backend's context.
    """

    def __init__(
        self,
        task: Task | PromptFormat,
        backend: LogprobBackend,
        demonstrations: Iterable[Demonstration] = (),
        max_tokens: int = 16,
    ) -> None:
        if max_tokens < 1:
            raise InvalidPlan(f"max_tokens must be at least 1, not {max_tokens}")
        self._prompt = FewShotPrompt(task, backend, demonstrations)
        self.format = self._prompt.format
        self._max_tokens = max_tokens
        self._ends = ending_tokens(backend)

    def __repr__(self) -> str:
        return f"Extractor({self.format.label_field!r}, max_tokens={self._max_tokens})"

    @overload
    def predict(self, texts: str) -> str: ...  # type: ignore[overload-overlap]  # a str is an iterable of str
    @overload
    def predict(self, texts: Iterable[str]) -> list[str]: ...
    @redacts_errors(None)
    def predict(self, texts: str | Iterable[str]) -> str | list[str]:
        """Return what the model writes for one text, or a list for several; a label may be empty.

        Raises:
            InvalidRecords: a text is blank or not a string. The message names its position, never the text.
            BackendError: the model failed, or cannot evaluate a text; the message names its position.
        """
        if isinstance(texts, str):
            return next(self.stream([texts]))
        return list(self.stream(texts, batch_size=_BATCH))

    @redacts_errors(None)
    def stream(self, texts: Iterable[str], *, batch_size: int = 1) -> Iterator[str]:
        """Yield what the model writes, in the order of the texts; errors are those of `predict`.

        Args:
            texts: read lazily.
            batch_size: the number of texts to read ahead and decode together, at least 1. A model in this
                process decodes them in parallel, each with the same bits as alone. An error in one text
                precedes all labels of its batch.
        """
        if batch_size < 1:
            raise InvalidPlan(f"batch_size must be at least 1, not {batch_size}")
        items = self._prompt.questions(texts)
        while batch := list(islice(items, batch_size)):
            for written in self._decoded(batch):
                with failing_as_backend():
                    text = text_of(self._prompt.backend, written, self._ends)
                yield text

    def _decoded(self, questions: Sequence[tuple[int, list[int]]]) -> list[list[int]]:
        """Decode all questions greedily, each to its end or to `max_tokens`."""
        written: list[list[int]] = [[] for _ in questions]
        with self._prompt.block([tokens for _, tokens in questions], self._max_tokens) as block:
            for step in range(self._max_tokens):
                if step > 0:
                    block.append_each([tokens[-1] for tokens in written])
                rows = self._prompt.answers(block, len(questions))
                for tokens, row, (position, _) in zip(written, rows, questions, strict=True):
                    # A label that has ended repeats its end until all have ended.
                    ended = bool(tokens) and tokens[-1] in self._ends
                    tokens.append(tokens[-1] if ended else _likeliest(row, position))
                if all(tokens[-1] in self._ends for tokens in written):
                    break
        return [self._until_its_end(tokens) for tokens in written]

    def _until_its_end(self, tokens: list[int]) -> list[int]:
        end = next((index for index, token in enumerate(tokens) if token in self._ends), len(tokens) - 1)
        return tokens[: end + 1]


def _likeliest(row: NDArray[np.float64], position: int) -> int:
    if np.isnan(row).any() or row.max() == -np.inf:
        raise no_answer(position)
    return int(row.argmax())
