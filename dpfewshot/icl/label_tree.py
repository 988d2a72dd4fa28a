"""The probability of labels of one or several tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidTask

_NEVER_NOTHING = np.finfo(np.float64).tiny


class LabelTree:
    """The prefixes and next tokens that are needed to score every label as a whole.

    A label's probability is that its tokens come next, and not a longer label that starts with them. So
    labels exclude each other, and need no end token: whatever follows "Number" counts for "Number", except "
    of people" if "Number of people" is a label too.

    Args:
        labels: the tokens of each label.
        vocabulary_size: V.

    Attributes:
        beginnings: the proper prefixes of labels, the empty one first; the model is asked what follows each.
        longest_beginnings: those with which no other one begins.
        support: the tokens of all labels, ascending.

    Raises:
        InvalidTask: a label has no tokens, those of another label, or one outside the vocabulary. The message
            counts labels from 1.
    """

    def __init__(self, labels: Sequence[Sequence[int]], vocabulary_size: int) -> None:
        paths = [tuple(label) for label in labels]
        following: dict[tuple[int, ...], set[int]] = {}
        for number, path in enumerate(paths, start=1):
            if not path or path in paths[: number - 1] or max(path) >= vocabulary_size:
                raise InvalidTask(
                    f"label {number} has no tokens of its own in this backend's vocabulary: "
                    "choose other words for it (label_words)"
                )
            for end, token in enumerate(path):
                following.setdefault(path[:end], set()).add(token)
        self.beginnings = sorted(following)
        inner = {beginning[:-1] for beginning in self.beginnings if beginning}
        self.longest_beginnings = [each for each in self.beginnings if each not in inner]
        self.support = sorted(set().union(*following.values()))
        row = {beginning: index for index, beginning in enumerate(self.beginnings)}
        column = {token: index for index, token in enumerate(self.support)}
        self._steps = [[(row[path[:end]], column[token]) for end, token in enumerate(path)] for path in paths]
        self._longer = [
            (row[path], [column[token] for token in sorted(following[path])]) if path in following else None
            for path in paths
        ]

    def logprobs(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-probability of each label.

        Args:
            rows: log-probabilities of the support after each beginning, in nats, shape
                (texts, beginnings, tokens of the support).

        Returns:
            Nats, shape (texts, labels); the probabilities of a text sum to at most 1.
        """
        scores = np.empty((len(rows), len(self._steps)))
        for label, (steps, longer) in enumerate(zip(self._steps, self._longer, strict=True)):
            scores[:, label] = sum(rows[:, row, column] for row, column in steps)
            if longer is not None:
                row, columns = longer
                left = 1 - np.exp(rows[:, row, columns]).sum(axis=1)
                scores[:, label] += np.log(np.maximum(left, _NEVER_NOTHING))
        return scores
