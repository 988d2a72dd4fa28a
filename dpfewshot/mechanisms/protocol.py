"""What a mechanism is: an event for the accountant, a support rule, and the release of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfewshot.account.permit import Permit
from dpfewshot.accounting.events import Event
from dpfewshot.exact.random_source import RandomSource


class RowChange(Enum):
    """How one unit can change the rows of a draw (docs/proofs/sampling.md, Lemma 1)."""

    ADDED = "one row more or less"
    """One record per prompt, add-remove or zero-out: a unit has a row of its own, or none."""

    REPLACED = "one row becomes another"
    """Several records per prompt, or fixed-size draws: one row becomes any other row, or an absent one."""

    @property
    def rows(self) -> int:
        """The rows in one change: 1 where a row comes or goes, 2 where one goes and another comes."""
        return 1 if self is RowChange.ADDED else 2


@dataclass(frozen=True)
class FixedSize:
    """Fixed-size draws without replacement.

    Attributes:
        sample_size: m, units in a draw.
        population: n ≥ m, public.
    """

    sample_size: int
    population: int


@dataclass(frozen=True)
class Draws:
    """The draws of a plan, all public.

    Attributes:
        sampling_rate: q in (0, 1], rounded up: the probability that a unit is in a draw.
        steps: the number of draws.
        tokens_per_draw: R, tokens that share one draw.
        prompts: M, the constant number of prompts that a mean is taken over.
        row_change: how one unit can change the rows of a draw.
        fixed_size: m of n, where draws are not Poisson.
    """

    sampling_rate: float
    steps: int
    tokens_per_draw: int
    prompts: int
    row_change: RowChange
    fixed_size: FixedSize | None = None


class Release(Protocol):
    """A mechanism at work on one demonstration: the only place where private numbers become a token."""

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        """The candidate tokens, ascending: a function of public numbers.

        Args:
            public_logprobs: of the prompt without records, shape (V,).
            excluded: tokens that may not be released now.
        """
        ...

    def token(
        self, logprobs: NDArray[np.float32], public_logprobs: NDArray[np.float32], permit: Permit
    ) -> int | None:
        """The index in the support of the released token, or None where the demonstration ends here.

        Args:
            logprobs: private, one row a prompt, shape (prompts, support). A row of NaN is an absent prompt.
            public_logprobs: of the prompt without records, shape (support,).
            permit: loses one token before anything is drawn.
        """
        ...


class Mechanism(Protocol):
    """One of the papers' mechanisms with its settings: public, and fixed before anything is drawn."""

    @property
    def name(self) -> str:
        """The name in output lines and plans."""
        ...

    @property
    def top_k(self) -> int | None:
        """K, how many of the likeliest public tokens are candidates (RVP); None is the whole vocabulary."""
        ...

    def check(self, vocabulary_size: int) -> None:
        """Refuse settings that the backend cannot serve.

        Raises:
            InvalidPlan: a setting outside its range.
        """
        ...

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """The privacy event of a whole plan.

        Raises:
            InvalidPlan: the mechanism has no proof for such draws.
        """
        ...

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float | None:
        """The noise's standard deviation on a coordinate of the mean probability vector.

        None where the noise is not added to probabilities.
        """
        ...

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """The release of one demonstration's tokens.

        Args:
            draws: as planned.
            noise_multiplier: as planned, σ > 0.
            random_source: for tests alone.
        """
        ...
