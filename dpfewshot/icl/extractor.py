"""Extraction: the label is what the model writes, token by token, each the likeliest one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import overload

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.endings import ending_tokens, text_of
from dpfewshot.errors import InvalidPlan
from dpfewshot.formats import PromptFormat
from dpfewshot.icl.few_shot import FewShotPrompt, no_answer
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration


class Extractor:
    """Writes the label of a text by greedy decoding, up to the end of its line.

    Args:
        task: a task, or the prompt's format.
        backend: any language model. It need not be trusted with anything but the texts.
        demonstrations: released ones, in the order in which they are to stand.
        max_tokens: tokens of a label at most, at least 1.

    Attributes:
        format: the words of the prompt.

    Raises:
        InvalidTask: a demonstration's label is none of the task's.
        InvalidPlan: `max_tokens` below 1, or the demonstrations are longer than the backend's context.
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
    def predict(self, texts: str) -> str: ...  # type: ignore[overload-overlap]  # a str is its letters too
    @overload
    def predict(self, texts: Iterable[str]) -> list[str]: ...
    def predict(self, texts: str | Iterable[str]) -> str | list[str]:
        """What the model writes for one text, or for each of several; it may be empty.

        Raises:
            InvalidRecords: a text is no string, or blank. Names its position, never the text.
            BackendError: the model failed, or has no answer for a text, whose position is named.
        """
        if isinstance(texts, str):
            return next(self.stream([texts]))
        return list(self.stream(texts))

    def stream(self, texts: Iterable[str]) -> Iterator[str]:
        """What the model writes for each text, in order, each when it is there; errors as of `predict`."""
        for position, question in self._prompt.questions(texts):
            written = self._tokens(position, question)
            yield text_of(self._prompt.backend, written, self._ends)

    def _tokens(self, position: int, question: list[int]) -> list[int]:
        written: list[int] = []
        with self._prompt.block([question], self._max_tokens) as block:
            while len(written) < self._max_tokens:
                row = self._prompt.answers(block, 1)[0]
                if np.isnan(row).any() or row.max() == -np.inf:
                    raise no_answer(position)
                written.append(int(row.argmax()))
                if written[-1] in self._ends:
                    break
                block.append(written[-1])
        return written
