"""Confidence intervals of proportions and means, by SciPy's quantile functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special


def clopper_pearson(successes: float, trials: int, tail: float) -> tuple[float, float]:
    """Bounds on a binomial probability (Clopper and Pearson 1934).

    `scipy.stats.binomtest` gives the same bounds by root finding, to 5e-10 instead of round-off.

    Args:
        successes: in 0..trials; a sum of fractions is allowed.
        trials: at least 1.
        tail: the probability that a bound is wrong, for each bound by itself.
    """
    failures = trials - successes
    low = special.betaincinv(successes, failures + 1, tail) if successes > 0 else 0.0
    high = special.betainccinv(successes + 1, failures, tail) if failures > 0 else 1.0
    return float(low), float(high)


def student_t_reach(values: NDArray[np.float64], tail: float) -> float:
    """Half the width of Student's t interval for the mean of two or more independent values.

    Args:
        values: one-dimensional.
        tail: the probability beyond each end.
    """
    error = values.std(ddof=1) / len(values) ** 0.5
    return -float(special.stdtrit(len(values) - 1, tail) * error)
