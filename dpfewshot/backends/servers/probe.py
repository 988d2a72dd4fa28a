"""Checks at connection: a server's values are the model's own, and independent of neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpfewshot.backends.conformance import LONG_TOKENS, NORMALISATION
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.dialect import Dialect, spread
from dpfewshot.errors import BackendError

MOVED = 0.05
"""The most that sampling settings may change a probability."""

LEAST, MOST = 8, 128
"""Bounds on the number of crowd prompts, less one: enough to change kernels, few enough to wait for.

vLLM's batch-invariant mode has known faults from 44 to 65 sequences on."""

EVERY = 8
"""One prompt in this many is long."""

ENDING = 16
"""The last tokens of a long prompt, which are its own."""

STRETCHED = 0.3
"""The most that sampling settings may change differences of log-probabilities, as a share of them.

A temperature of 0.5 doubles the differences."""


class Asking(Protocol):
    """Asks a server, with sampling settings."""

    def __call__(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> Logprobs:
        """Return rows of log-probabilities; see `Asker.rows`."""
        ...


@dataclass(frozen=True)
class Findings:
    """Results of the checks.

    Attributes:
        batch_invariant: whether prompts have the same bits alone, among others, in another order and again.
        picks: whether a request for a few token ids gives the same bits as a request for all.
    """

    batch_invariant: bool
    picks: bool


def probe(ask: Asking, prompts: Sequence[Tokens], dialect: Dialect) -> Findings:
    """Ask public prompts alone and as a crowd, and compare the answers.

    Only a crowd shows the fault: a vLLM gave three prompts the same bits alone and together, but not 10 of 12
    prompts (docs/decisions/servers.md).

    Args:
        ask: the server.
        prompts: the prompts that `crowd` makes, in the number that `crowd_of` returns.
        dialect: the server's dialect.

    Raises:
        BackendError: the log-probabilities are not the model's own: they do not sum to 1, or sampling
            settings change them. Or a prompt that fits in the context has no answer.
    """
    whole = ask(prompts[:1], None)[0]
    check_total(whole, whole=dialect.whole)
    check_untouched(whole, ask(prompts[:1], None, dialect.distorted)[0])
    support = spread(dialect.vocabulary_size)
    picks = dialect.picks and _answers(ask, prompts[0], support) == whole[support].tobytes()
    asked = support if picks else None
    first = ask(prompts[:1], asked)[0] if picks else whole
    alone = [first, *(ask([prompt], asked)[0] for prompt in prompts[1:])]
    _check_answered(prompts, alone, dialect.context_tokens)
    order = [*reversed(range(len(prompts))), 0]
    together = ask([prompts[place] for place in order], asked)
    return Findings(
        batch_invariant=all(
            row.tobytes() == alone[place].tobytes() for row, place in zip(together, order, strict=True)
        ),
        picks=picks,
    )


def _check_answered(prompts: Sequence[Tokens], rows: Sequence[Logprobs], context: int | None) -> None:
    """Check that every prompt has a row: two rows of NaN are alike, and show nothing.

    A server that does not state its context may refuse the long prompts.

    Raises:
        BackendError: one that fits in the stated context has none.
    """
    lengths = [len(prompt) for prompt, row in zip(prompts, rows, strict=True) if np.isnan(row).any()]
    if lengths and context is not None:
        raise BackendError(
            f"the server does not answer a public prompt of {max(lengths)} tokens, though it states a "
            f"context of {context}: look at its log, or start it with a larger context"
        )


def crowd_of(prompts_per_request: int, concurrency: int) -> int:
    """Return a number of prompts that fills all concurrent requests, within `LEAST` and `MOST`, plus one."""
    return min(max(concurrency * prompts_per_request, LEAST), MOST) + 1


def crowd(short: Sequence[Tokens], count: int, longest: int | None) -> list[list[int]]:
    """Return prompts of mixed lengths, one in eight of them long.

    Long prompts share all but their ends. A server that caches prefixes reuses one for another even where it
    reuses none across requests: vLLM's `cache_salt` names a request, and its caches hold blocks of 16 tokens
    on a GPU and 128 on a CPU.

    Args:
        short: public prompts.
        count: the number of prompts.
        longest: the longest prompt that the server accepts; None if it does not say.
    """
    size = LONG_TOKENS if longest is None else min(LONG_TOKENS, longest)
    beginning = [*short[0]] * size
    chosen = [list(short[place % len(short)])[:size] for place in range(count)]
    return [
        beginning[: max(0, size - ENDING)] + prompt[-min(ENDING, size) :] if place % EVERY == 1 else prompt
        for place, prompt in enumerate(chosen)
    ]


def _answers(ask: Asking, prompt: Tokens, support: Tokens) -> bytes:
    """Return the bits of chosen log-probabilities; b"" if the server ignores the choice."""
    try:
        return bytes(ask([prompt], support)[0].data)
    except BackendError:
        return b""


def check_total(row: Logprobs, *, whole: bool) -> None:
    """Check that probabilities sum to 1, or to at most 1 if the server truncates.

    Raises:
        BackendError: they do not.
    """
    total = float(np.exp(row.astype(np.float64)).sum())
    if not (total > 0 and np.log(total) <= NORMALISATION) or (whole and np.log(total) < -NORMALISATION):
        raise BackendError(f"the server's probabilities sum to {total:.4g} over the vocabulary")


def check_untouched(row: Logprobs, distorted: Logprobs) -> None:
    """Check that sampling settings do not change the log-probabilities.

    Raises:
        BackendError: they do.
    """
    known = np.isfinite(row) & np.isfinite(distorted)
    stretched = np.std(distorted[known] - row[known]) > STRETCHED * np.std(row[known])
    if stretched or not np.abs(np.exp(distorted) - np.exp(row)).max() <= MOVED:
        raise BackendError(
            "the server's log-probabilities are from after sampling (temperature and penalties change them): "
            "configure it to return the model's own, see docs/how-to/servers.md"
        )
