"""Checks of single answers: shape, support, total probability, end tokens, and unusual prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dpfewshot.backends.conformance.findings import Comparison, Finding
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens, open_block

NORMALISATION = 1e-3
"""The largest deviation of the log of a row's total probability from 0 that passes, in nats."""

WIDE = 100
"""Tokens of the support in `check_support`: the mechanisms' default number."""


def check_shapes(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that answers are float32, one row per prompt, and that a support selects columns in its order."""
    size = backend.vocabulary_size
    support = [size - 1, 0, size // 2]
    whole = backend.next_token_logprobs(prompts)
    cut = backend.next_token_logprobs(prompts, support)
    wrong = [
        name
        for name, answer, shape in (
            ("the whole vocabulary", whole, (len(prompts), size)),
            ("a support", cut, (len(prompts), len(support))),
            ("an empty support", backend.next_token_logprobs(prompts, []), (len(prompts), 0)),
            ("no prompts", backend.next_token_logprobs([]), (0, size)),
            ("no prompts and a support", backend.next_token_logprobs([], support), (0, len(support))),
        )
        if answer.shape != shape or answer.dtype != np.float32
    ]
    if not wrong and cut.tobytes() != np.ascontiguousarray(whole[:, support]).tobytes():
        wrong.append("the values of a support")
    return Finding("shapes", not wrong, f"wrong: {', '.join(wrong) or 'none'}")


def check_support(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a wide support, in any order, has the bits of its columns in the whole vocabulary."""
    whole = backend.next_token_logprobs(prompts)
    likeliest = np.argsort(-whole[0], kind="stable")[:WIDE].tolist()
    comparison = Comparison()
    for support in (likeliest, likeliest[::-1], sorted(likeliest), likeliest[-1:]):
        comparison.add(whole[:, support], backend.next_token_logprobs(prompts, support))
    return Finding("support", comparison.different == 0, comparison.detail)


def check_normalisation(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that each row's probabilities sum to 1, or to less if some are unknown (-inf)."""
    good = _normalised(backend.next_token_logprobs(prompts))
    return Finding(
        check="normalisation",
        passed=bool(good.all()),
        detail=f"{int((~good).sum())} of {len(good)} rows are not normalised",
    )


def check_end_tokens(backend: LogprobBackend, prompts: Sequence[Tokens], texts: Iterable[str]) -> Finding:
    """Check that end tokens have a probability, so that a demonstration can end, and are not in plain text.

    A server that ignores end tokens, or enforces a minimum number of tokens, fails here.
    """
    ends = sorted(backend.end_token_ids.intersection(range(backend.vocabulary_size)))
    within = sorted({token for text in texts for token in backend.tokenize(text)}.intersection(ends))
    untold = np.isneginf(backend.next_token_logprobs(prompts))
    banned = bool(ends) and bool(untold[:, ends].all()) and not np.delete(untold, ends, axis=1).any()
    says = "only they have no probability" if banned else f"in plain text: {within or 'none'}"
    return Finding("end tokens", not within and not banned, f"{len(ends)} end tokens; {says}")


def check_empty_prompt(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that an empty prompt gives a row of NaN or of probabilities, and changes no neighbour's row."""
    alone, comparison = _among(backend, [], prompts)
    if comparison.different:
        return comparison.finding("empty prompt")
    passed = bool(np.isnan(alone).all() or _normalised(alone).all())
    return Finding("empty prompt", passed, "a row of NaN" if np.isnan(alone).any() else "a row of its own")


def check_long_prompt(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt longer than the context gives a row of NaN, even in blocks, and changes no other.

    Passes without a test if the backend has no `context_tokens`.
    """
    context: int | None = getattr(backend, "context_tokens", None)
    if context is None:
        return Finding("long prompt", passed=True, detail="not tested: the backend has no context_tokens")
    filler = max(prompts, key=len)
    long = (list(filler) * (context // len(filler) + 1))[: context + 1]
    alone, comparison = _among(backend, long, prompts)
    expected, found = _first_answer(backend, [prompts[0]]), _first_answer(backend, [prompts[0], long])
    comparison.add(expected, found[:1])
    if comparison.different:
        return comparison.finding("long prompt")
    passed = bool(np.isnan(alone).all() and np.isnan(found[1]).all())
    says = "a row of NaN" if passed else "answered, although they exceed the context"
    return Finding("long prompt", passed, f"{context + 1} tokens: {says}")


def _normalised(rows: Logprobs) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which rows sum to 1, or to less if some entries are -inf."""
    wide = rows.astype(np.float64)
    totals = np.log(np.exp(wide).sum(axis=1))
    partial = np.isneginf(wide).any(axis=1)
    good: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.where(
        partial, totals <= NORMALISATION, np.abs(totals) <= NORMALISATION
    )
    return good


def _among(
    backend: LogprobBackend, prompt: Tokens, neighbours: Sequence[Tokens]
) -> tuple[Logprobs, Comparison]:
    """Return a prompt's answer alone, and compare it and its neighbours alone and together."""
    alone = backend.next_token_logprobs([prompt])
    expected = backend.next_token_logprobs(neighbours)
    together = backend.next_token_logprobs([neighbours[0], prompt, *neighbours[1:]])
    comparison = Comparison()
    comparison.add(np.concatenate([expected[:1], alone, expected[1:]]), together)
    return alone, comparison


def _first_answer(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Logprobs:
    block = open_block(backend, [], prompts, 2)
    try:
        return block.next_token_logprobs()
    finally:
        block.close()
