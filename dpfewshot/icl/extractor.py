"""Extraction: the model writes the label by greedy decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend, Tokens, failing_as_backend
from dpfewshot.backends.text import ending_tokens, whole_text
from dpfewshot.errors import InvalidPlan
from dpfewshot.icl.prompt import FewShotPrompt, Labeller, Question, no_answer
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration


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
        super().__init__(FewShotPrompt(task, backend, demonstrations))
        self.max_tokens = max_tokens
        self._ends = ending_tokens(backend)

    def __repr__(self) -> str:
        return f"Extractor({self.format.label_field!r}, max_tokens={self.max_tokens})"

    def _answers(self, batch: Sequence[Question]) -> Iterator[str]:
        for written, (position, _) in zip(self.greedy([tokens for _, tokens in batch]), batch, strict=True):
            if written is None:
                raise no_answer(position)
            with failing_as_backend():
                text = self.text(written)
            yield text

    def _label(self, answer: str) -> str:
        return answer

    def greedy(self, questions: Sequence[Tokens]) -> list[list[int] | None]:
        """Decode all questions greedily. One that reached its end repeats its last token.

        None stands where the backend has no answer.
        """
        written: list[list[int]] = [[] for _ in questions]
        unanswered: set[int] = set()
        with self.prompt.block(questions, self.max_tokens, private=True) as block:
            for step in range(self.max_tokens):
                if step > 0:
                    block.append_each([tokens[-1] for tokens in written])
                rows = self.prompt.answers(block, len(questions))
                for index, (tokens, row) in enumerate(zip(written, rows, strict=True)):
                    ended = index in unanswered or (bool(tokens) and tokens[-1] in self._ends)
                    if not ended and (np.isnan(row).any() or row.max() == -np.inf):
                        unanswered.add(index)
                    tokens.append(tokens[-1] if ended else int(row.argmax()))
                if all(at in unanswered or tokens[-1] in self._ends for at, tokens in enumerate(written)):
                    break
        return [None if index in unanswered else tokens for index, tokens in enumerate(written)]

    def text(self, written: Tokens) -> str:
        """Return the text of what `greedy` wrote, without its end and without parts of characters."""
        said = [token for token in written if token not in self._ends]
        return whole_text(self.prompt.backend, said).strip()


def same_label(written: str, label: str) -> bool:
    """Return whether an extracted label is right, up to case and white space."""
    return written.casefold().split() == label.casefold().split()
