"""Whether the model itself would give a text its label. Nothing here reads a record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Final
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.icl.classifier import CONTENT_FREE
from dpfewshot.icl.prompt import FewShotPrompt
from dpfewshot.runtime.forking import cached_property
from dpfewshot.runtime.redaction import none_if_it_fails
from dpfewshot.tasks import Task

_TIE: Final = 1e-4
"""Nats by which rounding may part two tokens that are as likely."""


class LabelCheck:
    """Has a model write the label of a text, token by token, without demonstrations.

    A token of a label is compared with those of the labels that begin alike. What the model answers to texts
    without content is taken off each (contextual calibration, Zhao et al. 2021). A label is not told from a
    longer one that begins with it. A free label is told by its words alone, which the text has.
    """

    def __init__(self, task: Task, backend: LogprobBackend) -> None:
        self._task, self._backend = task, backend
        self._biases = dict[str, list[NDArray[np.float64]]]()

    @cached_property
    def _prompt(self) -> FewShotPrompt:
        return FewShotPrompt(self._task, self._backend, ())

    @cached_property
    def _paths(self) -> dict[str, list[tuple[int, list[int]]]]:
        tree = self._prompt.label_tree()
        return {label: tree.path(number) for number, label in enumerate(self._task.labels or ())}

    def fits(self, label: str, text: str) -> bool:
        """Whether the model writes this label behind a public text, or cannot say.

        Raises:
            BackendError: the model is away, and may come back. Any other failure says nothing.
        """
        if self._task.labels is None:
            said, words = (" ".join(normalize("NFKC", one).casefold().split()) for one in (text, label))
            return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", said) is not None
        return none_if_it_fails(partial(self._fits, label, text), for_good=True) is not False

    def _fits(self, label: str, text: str) -> bool:
        if not self._paths[label]:
            return True
        if label not in self._biases:
            empty = map(self._prompt.format.layout.repeated, CONTENT_FREE)
            self._biases[label] = [_bias(rows) for rows in self._answers(label, empty)]
        steps = zip(self._paths[label], self._answers(label, [text]), self._biases[label], strict=True)
        return all(
            scores[tokens.index(own)] >= scores.max() - _TIE
            for (own, tokens), rows, bias in steps
            for scores in rows - bias
        )

    def _answers(self, label: str, texts: Iterable[str]) -> list[NDArray[np.float64]]:
        """The log-probabilities of each token of a label and of those in its place, shape (texts, tokens).

        Those that are not known are -inf.
        """
        questions, path, answers = [*map(self._prompt.question, texts)], self._paths[label], []
        with self._prompt.block(questions, len(path)) as block:
            for place, (_, tokens) in enumerate(path):
                if place:
                    block.append(path[place - 1][0])
                rows = self._prompt.answers(block, len(questions), tokens)
                answers.append(np.where(np.isfinite(rows), rows, -np.inf))
        return answers


def _bias(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """What calibration takes off; of a token that is not known, what it takes off the least likely one."""
    summed: NDArray[np.float64] = np.logaddexp.reduce(rows)
    known = summed[np.isfinite(summed)]
    return np.where(np.isfinite(summed), summed, known.min() if known.size else 0.0)
