"""The reduced vocabulary (RVP): the candidates are the likeliest tokens of the prompt without records.

Tang et al., Algorithm 1, lines 7-9. The support depends only on public numbers, so it costs no privacy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidPlan
from dpfewshot.values import check_whole


def likeliest(public_logprobs: NDArray[np.float32], excluded: frozenset[int], top_k: int | None) -> list[int]:
    """The K likeliest public tokens that are not excluded, ascending by token id.

    Args:
        public_logprobs: of the prompt without records, shape (V,); a NaN counts as least likely.
        excluded: tokens that may not be released now.
        top_k: K; None is the whole vocabulary.
    """
    scores = np.array(public_logprobs, dtype=np.float32)
    scores[np.isnan(scores)] = -np.inf
    candidates = np.argsort(-scores, kind="stable")
    allowed = candidates[~np.isin(candidates, list(excluded))]
    kept: list[int] = np.sort(allowed[:top_k]).tolist()
    return kept


def check_top_k(top_k: int | None, vocabulary_size: int) -> None:
    """Refuse a K outside 1 to V.

    Raises:
        InvalidPlan: K is not a whole number from 1 to the vocabulary's size.
    """
    if top_k is None:
        return
    check_whole("top_k", top_k)
    if top_k > vocabulary_size:
        raise InvalidPlan(f"top_k must lie between 1 and the backend's {vocabulary_size} tokens, not {top_k}")
