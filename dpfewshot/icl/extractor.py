"""Extraction: the model writes the label by greedy decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend, Tokens, failing_as_backend
from dpfewshot.backends.text import ending_tokens, text_of
from dpfewshot.errors import InvalidPlan
from dpfewshot.icl.prompt import FewShotPrompt, Labeller, Question, no_answer
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration

_BATCH: Final = 30  # two groups of parallel streams


class Extractor(Labeller[str]):
    """Extracts labels by greedy decoding up to the end of the line.

    Args:
        task, backend, demonstrations: as in `Classifier`; labels may be free.
        max_tokens: the most tokens of a label, at least 1.

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
        super().__init__(FewShotPrompt(task, backend, demonstrations), _BATCH)
        self._max_tokens = max_tokens
        self._ends = ending_tokens(backend)

    def __repr__(self) -> str:
        return f"Extractor({self.format.label_field!r}, max_tokens={self._max_tokens})"

    def _answers(self, batch: Sequence[Question]) -> Iterator[str]:
        decoded = greedy(self._prompt, [tokens for _, tokens in batch], self._max_tokens, self._ends)
        for written, (position, _) in zip(decoded, batch, strict=True):
            if written is None:
                raise no_answer(position)
            with failing_as_backend():
                text = text_of(self._prompt.backend, written, self._ends)
            yield text

    def _label(self, answer: str) -> str:
        return answer


def greedy(
    prompt: FewShotPrompt, questions: Sequence[Tokens], max_tokens: int, ends: frozenset[int]
) -> list[list[int] | None]:
    """Decode all questions greedily, up to `max_tokens`. One that reaches one of `ends` repeats it.

    None stands where the backend has no answer.
    """
    written: list[list[int]] = [[] for _ in questions]
    unanswered: set[int] = set()
    with prompt.block(questions, max_tokens) as block:
        for step in range(max_tokens):
            if step > 0:
                block.append_each([tokens[-1] for tokens in written])
            rows = prompt.answers(block, len(questions))
            for index, (tokens, row) in enumerate(zip(written, rows, strict=True)):
                ended = index in unanswered or (bool(tokens) and tokens[-1] in ends)
                if not ended and (np.isnan(row).any() or row.max() == -np.inf):
                    unanswered.add(index)
                tokens.append(tokens[-1] if ended else int(row.argmax()))
            if all(tokens[-1] in ends or index in unanswered for index, tokens in enumerate(written)):
                break
    return [None if index in unanswered else tokens for index, tokens in enumerate(written)]


def same_label(written: str, label: str) -> bool:
    """Return whether an extracted label is right, up to case and white space."""
    return written.casefold().split() == label.casefold().split()
