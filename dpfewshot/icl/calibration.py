"""Calibration by a batch of texts: their average prediction measures the prompt's bias."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfewshot.errors import InvalidPlan


def batch_calibrated(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Divide each label's probabilities by their geometric mean over the texts, and normalise each text.

    Demonstrations bias some labels; content-free text, and so contextual calibration, reveals only part of
    the bias. A batch of real texts reveals more. A bias that multiplies a label's odds by the same factor for
    every text is removed exactly, so earlier calibration makes no difference. This follows batch calibration
    (Zhou et al., ICLR 2024), whose arithmetic mean has no such invariance.

    Labels should be about equally frequent: if most texts *have* one label, it looks like bias and is
    suppressed. Predictions depend on the rest of the batch, which should have dozens of texts.

    Args:
        probabilities: the result of `Classifier.predict_proba`, shape (texts, labels); each in 0..1.

    Returns:
        The same shape; rows sum to 1. There may be no text.

    Raises:
        InvalidPlan: the shape or a value is wrong.
    """
    given = np.asarray(probabilities, dtype=np.float64)
    if given.ndim != 2 or not ((given >= 0) & (given <= 1)).all():  # noqa: PLR2004 - texts and labels
        raise InvalidPlan("probabilities must have the shape (texts, labels), each in 0..1")
    if given.shape[0] == 0:
        return given
    logprobs = np.log(np.maximum(given, np.finfo(np.float64).tiny))  # a probability may round to 0
    scores = logprobs - logprobs.mean(axis=0)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    calibrated: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return calibrated
