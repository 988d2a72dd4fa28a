"""Whether the model itself would give a text its label. Nothing here reads a record."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError
from dpfewshot.icl.classifier import CONTENT_FREE
from dpfewshot.icl.prompt import FewShotPrompt
from dpfewshot.tasks import Task


class LabelCheck:
    """Has a model label texts without demonstrations, as a classifier with contextual calibration does.

    It asks for the tokens of one label in turn, and not for those of every label: one prompt a text.

    Args:
        task: a task with given labels.

    Raises:
        InvalidTask, InvalidPlan: the model's tokens do not tell labels apart, or its context is too short.
    """

    def __init__(self, task: Task, backend: LogprobBackend) -> None:
        self._prompt = FewShotPrompt(task, backend, ())
        tree = self._prompt.label_tree()
        self._paths = {label: tree.path(number) for number, label in enumerate(task.labels or ())}
        self._biases = dict[str, list[NDArray[np.float64]]]()

    def fits(self, label: str, text: str) -> bool:
        """Whether each token of the label is the likeliest of those of all labels, or the model cannot say.

        Raises:
            BackendError: the model is away, and may come back.
        """
        try:
            if label not in self._biases:
                empty = map(self._prompt.format.layout.repeated, CONTENT_FREE)
                self._biases[label] = [np.logaddexp.reduce(rows) for rows in self._answers(label, empty)]
            answers = self._answers(label, [text])
        except BackendError as error:
            if error.retryable:
                raise
            return True
        steps = zip(self._paths[label], answers, self._biases[label], strict=True)
        return all(_is_likeliest(tokens.index(own), row - bias) for (own, tokens), [row], bias in steps)

    def _answers(self, label: str, texts: Iterable[str]) -> list[NDArray[np.float64]]:
        """The log-probabilities of each token of a label and of those in its place, shape (texts, tokens)."""
        questions, path, answers = [*map(self._prompt.question, texts)], self._paths[label], []
        with self._prompt.block(questions, len(path)) as block, np.errstate(invalid="ignore"):
            for place, (_, tokens) in enumerate(path):
                if place:
                    block.append(path[place - 1][0])
                answers.append(self._prompt.answers(block, len(questions), tokens))
        return answers


def _is_likeliest(own: int, scores: NDArray[np.float64]) -> bool:
    """Whether a token has the highest score of those that are known, if its own is."""
    known = scores[np.isfinite(scores)]
    return not known.size or np.isnan(scores[own]) or bool(scores[own] >= known.max())
