"""What a mechanism is: an event for the accountant, a support rule, and the release of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfewshot.accounting.events import Event
from dpfewshot.budget.permit import Permit
from dpfewshot.exact.random_source import RandomSource


class RowChange(Enum):
    """What one unit can do to the rows of a draw (docs/proofs/sampling.md, Lemma 1)."""

    ADDED = "one row more or less"
    """One record per prompt, add-remove or zero-out: a unit has a row of its own, or none."""

    REPLACED = "one row becomes another"
    """Several records per prompt, or draws of fixed size: a row changes into any other, or into nothing."""

    @property
    def rows(self) -> int:
        """How many rows a change is made of: one that comes or goes, or one out and one in."""
        return 1 if self is RowChange.ADDED else 2


@dataclass(frozen=True)
class FixedSize:
    """Draws of fixed size without replacement.

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
        sampling_rate: q in (0, 1], rounded up, each unit's probability of being in a draw.
        steps: how many draws.
        tokens_per_draw: R, tokens that share one draw.
        prompts: M, the constant number of prompts that means are taken over.
        row_change: what one unit can do to the rows.
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
        """The candidate tokens, ascending, as a function of public numbers.

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
            permit: used up by one token before anything is drawn.
        """
        ...


class Mechanism(Protocol):
    """One of the papers' mechanisms with its settings: public, and fixed before anything is drawn."""

    @property
    def name(self) -> str:
        """The name that output lines and plans carry."""
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
            InvalidPlan: draws for which nothing is proved.
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
        """What releases the tokens of one demonstration, with its noise fixed.

        Args:
            draws: as they were planned.
            noise_multiplier: as it was planned, above 0.
            random_source: for tests alone.
        """
        ...
