"""The distribution nearest to a released noisy vector, which the next query centres on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core


def nearest_distribution(noisy: NDArray[np.int64], prompts: int) -> NDArray[np.int64]:
    """The distribution nearest in L2 to noisy/M, in grid steps, each in 0..grid.

    Post-processing, after Duchi, Shalev-Shwartz, Singer, Chandra 2008, Figure 1. With K = 100 candidates,
    cutting negative coordinates and rescaling the rest drowns the mean in the positive half of the noise. The
    projection subtracts a constant instead (docs/decisions/mechanisms.md).

    Args:
        noisy: a released sum over M prompts, in grid steps, shape (support,).
        prompts: M.
    """
    mean = noisy / (float(_core.grid) * prompts)
    ordered = np.sort(mean)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)
    threshold = excess[np.flatnonzero(ordered > excess)[-1]]
    shares = np.clip(mean - threshold, 0.0, 1.0)
    return np.asarray(np.floor(shares * _core.grid), dtype=np.int64)
