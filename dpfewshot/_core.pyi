from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.exact import RandomSource

grid: Final[int]
logit_grid: Final[int]
count_grid: Final[int]
LARGEST_LOGIT_CLIP: Final[float]
WIDEST: Final[int]

def rounded_normals(scale: int, count: int, source: RandomSource | None = None) -> NDArray[np.int64]: ...
def uniform_integers(bound: int, count: int, source: RandomSource | None = None) -> NDArray[np.uint64]: ...
def poisson_subsets(
    units: int, numerator: int, denominator: int, subsets: int, source: RandomSource | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
def sum_of_probabilities(logprobs: NDArray[np.float32]) -> NDArray[np.int64]: ...
def sum_of_max_normalised(logprobs: NDArray[np.float32]) -> NDArray[np.int64]: ...
def sum_around(
    logprobs: NDArray[np.float32], centre: NDArray[np.int64], clip: float
) -> NDArray[np.int64]: ...
def sum_of_clipped_logits(logits: NDArray[np.float32], clip: float) -> NDArray[np.int64]: ...
def sum_of_clipped_differences(
    logprobs: NDArray[np.float32], public_logprobs: NDArray[np.float32], clip: float
) -> NDArray[np.int64]: ...
def log_softmax(
    logits: NDArray[np.float32], support: Sequence[int] | NDArray[np.int64] | None = None
) -> NDArray[np.float32]: ...
def weight_enclosure(gap: int, numerator: int, denominator: int) -> tuple[int, int]: ...
def permute_and_flip(
    scores: NDArray[np.int64], numerator: int, denominator: int, source: RandomSource | None = None
) -> int: ...
def sample_softmax(
    scores: NDArray[np.int64], numerator: int, denominator: int, source: RandomSource | None = None
) -> int: ...
def noisy_sum_of_probabilities(
    logprobs: NDArray[np.float32], scale: int, source: RandomSource | None = None
) -> NDArray[np.int64]: ...
def noisy_sum_around(
    logprobs: NDArray[np.float32],
    centre: NDArray[np.int64],
    clip: float,
    prompts: int,
    scale: int,
    source: RandomSource | None = None,
) -> NDArray[np.int64]: ...
def sample_of_clipped_logits(
    logits: NDArray[np.float32],
    clip: float,
    numerator: int,
    denominator: int,
    source: RandomSource | None = None,
) -> int: ...
def sample_of_clipped_differences(
    logprobs: NDArray[np.float32],
    public_logprobs: NDArray[np.float32],
    clip: float,
    prompts: int,
    numerator: int,
    denominator: int,
    source: RandomSource | None = None,
) -> int: ...
def count_within(logprobs: NDArray[np.float32], centre: NDArray[np.int64], radius: float) -> int: ...
def noisy_count_within(
    logprobs: NDArray[np.float32],
    centre: NDArray[np.int64],
    radius: float,
    scale: int,
    source: RandomSource | None = None,
) -> int: ...

class Distances:
    def __init__(self, logprobs: NDArray[np.float32]) -> None: ...
    def scores(self, radii: Sequence[float], size: int) -> list[int]: ...
    def noisy_scores(
        self, radii: Sequence[float], size: int, scale: int, source: RandomSource | None = None
    ) -> list[int]: ...
