"""Extraction: the model writes the label by greedy decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, overload

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend, Tokens, failing_as_backend
from dpfewshot.backends.text import ending_tokens, text_of
from dpfewshot.errors import InvalidPlan
from dpfewshot.icl.prompt import FewShotPrompt, no_answer
from dpfewshot.prompts.few_shot import PromptFormat, Text
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
    def predict(self, texts: Text) -> str: ...  # type: ignore[overload-overlap]  # a str is an iterable of str
    @overload
    def predict(self, texts: Iterable[Text]) -> list[str]: ...
    @redacts_errors(None)
    def predict(self, texts: Text | Iterable[Text]) -> str | list[str]:
        """Return what the model writes for one text, or a list for several; a label may be empty.

        A text of several fields is a mapping of each field's name to its value, or a demonstration's text.

        Raises:
            InvalidRecords: a text is blank, not a string, or lacks a field. The message names its position,
                never the text.
            BackendError: the model failed, or cannot evaluate a text; the message names its position.
        """
        if isinstance(texts, (str, Mapping)):
            return next(self.stream([texts]))
        return list(self.stream(texts, batch_size=_BATCH))

    @redacts_errors(None)
    def stream(self, texts: Iterable[Text], *, batch_size: int = 1) -> Iterator[str]:
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
            decoded = greedy(self._prompt, [tokens for _, tokens in batch], self._max_tokens, self._ends)
            for written, (position, _) in zip(decoded, batch, strict=True):
                if written is None:
                    raise no_answer(position)
                with failing_as_backend():
                    text = text_of(self._prompt.backend, written, self._ends)
                yield text


def greedy(
    prompt: FewShotPrompt, questions: Sequence[Tokens], max_tokens: int, ends: frozenset[int]
) -> list[list[int] | None]:
    """Decode all questions greedily, each to its end or to `max_tokens`.

    Args:
        prompt: what precedes the questions.
        questions: the tokens of each text.
        max_tokens: the most tokens of a label, at least 1.
        ends: the tokens that end a label.

    Returns:
        For each question its tokens, with the one that ends it; None where the backend has no answer.
    """
    written: list[list[int]] = [[] for _ in questions]
    unanswered: set[int] = set()
    with prompt.block(questions, max_tokens) as block:
        for step in range(max_tokens):
            if step > 0:
                block.append_each([tokens[-1] for tokens in written])
            rows = prompt.answers(block, len(questions))
            for index, (tokens, row) in enumerate(zip(written, rows, strict=True)):
                # A label that has ended repeats its end until all have ended.
                ended = index in unanswered or (bool(tokens) and tokens[-1] in ends)
                if not ended and (np.isnan(row).any() or row.max() == -np.inf):
                    unanswered.add(index)
                tokens.append(tokens[-1] if ended else int(row.argmax()))
            if all(tokens[-1] in ends or index in unanswered for index, tokens in enumerate(written)):
                break
    return [
        None if index in unanswered else _until_its_end(tokens, ends) for index, tokens in enumerate(written)
    ]


def same_label(written: str, label: str) -> bool:
    """Return whether an extracted label is right, up to case and white space."""
    return written.casefold().split() == label.casefold().split()


def _until_its_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    end = next((index for index, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: end + 1]
