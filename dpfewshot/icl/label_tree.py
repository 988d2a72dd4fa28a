"""Labels of one or several tokens, and their probability as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidTask

_NEVER_NOTHING = np.finfo(np.float64).tiny


class LabelTree:
    """Which tokens must be looked at, and after which beginnings of a label, to score every label whole.

    The probability of a label is that the text goes on with its tokens, and not with a longer label that
    begins with them. So no two labels share any of it, and no end has to be asked for: what follows "Number"
    counts for "Number" unless it is " of people", if that is a label too.

    Args:
        labels: the tokens of each label.

    Attributes:
        beginnings: beginnings of labels, the empty one first: the model is asked what follows each.
        support: the tokens that labels are made of, ascending.

    Raises:
        InvalidTask: a label has no tokens, or the same as another. Counts from 1.
    """

    def __init__(self, labels: Sequence[Sequence[int]]) -> None:
        paths = [tuple(label) for label in labels]
        for number, path in enumerate(paths, start=1):
            if not path or path in paths[: number - 1]:
                raise InvalidTask(
                    f"label {number} has no tokens of its own in this backend's vocabulary: "
                    "write it in other words (label_words)"
                )
        self.beginnings = sorted({path[:end] for path in paths for end in range(len(path))})
        self.support = sorted({token for path in paths for token in path})
        column = {token: index for index, token in enumerate(self.support)}
        row = {beginning: index for index, beginning in enumerate(self.beginnings)}
        self._steps = [[(row[path[:end]], column[path[end]]) for end in range(len(path))] for path in paths]
        self._longer = [
            (
                row[path],
                sorted({column[other[len(path)]] for other in paths if path == other[: len(path)] != other}),
            )
            if path in row
            else None
            for path in paths
        ]

    def logprobs(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The log-probability of each label.

        Args:
            rows: log-probabilities of the support after each beginning, in nats, shape
                (texts, beginnings, tokens of the support).

        Returns:
            Shape (texts, labels), in nats; the probabilities of a text sum to at most 1.
        """
        scores = np.empty((len(rows), len(self._steps)))
        for label, (steps, longer) in enumerate(zip(self._steps, self._longer, strict=True)):
            scores[:, label] = sum(rows[:, row, column] for row, column in steps)
            if longer is not None:
                row, columns = longer
                left = 1 - np.exp(rows[:, row, columns]).sum(axis=1)
                scores[:, label] += np.log(np.maximum(left, _NEVER_NOTHING))
        return scores
