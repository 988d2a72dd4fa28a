"""What a server is found to do at connection: whether its answers are the model's, prompt by prompt."""

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
"""A probability that sampling settings move by more is no longer the model's own."""

LEAST, MOST = 8, 128
"""Prompts of the crowd, less one: enough for kernels to change with the batch, few enough to wait for.

vLLM's batch-invariant mode has known faults that begin at 44 to 65 sequences."""

EVERY = 8
"""How many prompts have a long one among them."""

STRETCHED = 0.3
"""So are log-probabilities whose differences change by this share; a temperature of 0.5 doubles them."""


class Asking(Protocol):
    """Asks a server, with sampling settings."""

    def __call__(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> Logprobs:
        """Rows of log-probabilities, as `Asker.rows`."""
        ...


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes:
        batch_invariant: whether prompts have the same bits alone, among others, in another order and again.
        picks: whether asking for a few tokens by id gives the bits that asking for all gives.
    """

    batch_invariant: bool
    picks: bool


def probe(ask: Asking, prompts: Sequence[Tokens], dialect: Dialect) -> Findings:
    """Find out what a server does with public prompts, alone and as a crowd.

    The crowd is what refutes: a vLLM without its batch-invariant mode gave three prompts the same bits
    alone and together, and 10 of 12 others.

    Args:
        ask: the server.
        prompts: of mixed lengths, as `crowd` makes them, as many as `crowd_of` says.
        dialect: what the server is.

    Raises:
        BackendError: log-probabilities are not the model's own: they do not add up, or come from after
            sampling.
    """
    whole = ask(prompts[:1], None)[0]
    check_total(whole, whole=dialect.whole)
    check_untouched(whole, ask(prompts[:1], None, dialect.distorted)[0])
    support = spread(dialect.vocabulary_size)
    picks = dialect.picks and _answers(ask, prompts[0], support) == whole[support].tobytes()
    asked = support if picks else None
    alone = [ask([prompt], asked)[0] for prompt in prompts]
    order = [*reversed(range(len(prompts))), 0]
    together = ask([prompts[place] for place in order], asked)
    return Findings(
        batch_invariant=all(
            row.tobytes() == alone[place].tobytes() for row, place in zip(together, order, strict=True)
        ),
        picks=picks,
    )


def crowd_of(prompts_per_request: int, concurrency: int) -> int:
    """Prompts that fill every request under way at once, and more than one request of several."""
    return min(max(concurrency * prompts_per_request, LEAST), MOST) + 1


def crowd(short: Sequence[Tokens], count: int, longest: int | None) -> list[list[int]]:
    """Prompts of mixed lengths, one in eight of them long.

    Args:
        short: public prompts.
        count: how many are wanted.
        longest: the longest prompt that the server takes; None if it does not tell.
    """
    size = LONG_TOKENS if longest is None else min(LONG_TOKENS, longest)
    chosen = [list(short[place % len(short)]) for place in range(count)]
    return [
        (prompt * size)[:size] if place % EVERY == 1 else prompt[:size] for place, prompt in enumerate(chosen)
    ]


def _answers(ask: Asking, prompt: Tokens, support: Tokens) -> bytes:
    """The bits of chosen log-probabilities; nothing where the server ignores which ones are chosen."""
    try:
        return bytes(ask([prompt], support)[0].data)
    except BackendError:
        return b""


def check_total(row: Logprobs, *, whole: bool) -> None:
    """Probabilities add up to 1; where the server truncates, to no more.

    Raises:
        BackendError: they do not.
    """
    total = float(np.exp(row.astype(np.float64)).sum())
    if not (total > 0 and np.log(total) <= NORMALISATION) or (whole and np.log(total) < -NORMALISATION):
        raise BackendError(f"the server's probabilities add up to {total:.4g} over the vocabulary")


def check_untouched(row: Logprobs, distorted: Logprobs) -> None:
    """Sampling settings do not move the log-probabilities.

    Raises:
        BackendError: they do.
    """
    told = np.isfinite(row) & np.isfinite(distorted)
    stretched = np.std(distorted[told] - row[told]) > STRETCHED * np.std(row[told])
    if stretched or not np.abs(np.exp(distorted) - np.exp(row)).max() <= MOVED:
        raise BackendError(
            "the server's log-probabilities are from after sampling (temperature and penalties move them): "
            "have it tell those of the model, see docs/how-to/servers.md"
        )
