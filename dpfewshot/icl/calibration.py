"""Calibration by a batch of texts: what they get on average is the prompt's bias, not theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfewshot.errors import InvalidPlan


def batch_calibrated(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Divide what each label gets by its geometric mean over the texts, and normalise for each text.

    Demonstrations can give a model a liking for some labels, which texts that say nothing, and so contextual
    calibration, show only in part; a batch of real texts shows more of it. A liking that multiplies a
    label's odds by the same number whatever the text is taken off exactly, so it makes no difference whether
    the probabilities were calibrated before. After batch calibration (Zhou et al., ICLR 2024), which takes
    the arithmetic mean and has no such invariance.

    The texts' labels should be about equally frequent: if most texts *are* of one label, it is held for a
    liking and pushed down. A text's label depends on the others of its batch, which should be dozens.

    Args:
        probabilities: of `Classifier.predict_proba`, shape (texts, labels); each in 0..1.

    Returns:
        The same shape; rows sum to 1. No text is the same shape too.

    Raises:
        InvalidPlan: not such numbers.
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
