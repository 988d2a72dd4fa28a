"""What a mechanism is: an event for the accountant, a support rule, and the release of tokens.

A mechanism subclasses `Mechanism` and states an event; its release subclasses `BaseRelease` and states
`choose`. `BaseRelease.token` uses up the permit before a private number is touched, so nobody can forget to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from dpfewshot.account.permit import Permit
from dpfewshot.accounting.events import Event, PublishedAccounting
from dpfewshot.backends.protocol import Logprobs
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.values import check_whole


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
    """Draws of `sample_size` m units without replacement, out of the public `population` n ≥ m."""

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

    def support(self, public_logprobs: Logprobs, excluded: frozenset[int]) -> list[int]:
        """The candidate tokens, ascending: a function of public numbers.

        Args:
            public_logprobs: of the prompt without records, shape (V,).
            excluded: tokens that may not be released now.
        """

    def token(self, logprobs: Logprobs, public_logprobs: Logprobs, permit: Permit) -> int | None:
        """The index in the support of the released token, or None where the demonstration ends here.

        Args:
            logprobs: private, one row a prompt, shape (prompts, support). A row of NaN is an absent prompt.
            public_logprobs: of the prompt without records, shape (support,).
            permit: loses one token before anything is drawn.
        """


class Mechanism(ABC):
    """One of the papers' mechanisms with its settings: public, and fixed before anything is drawn.

    Subclasses are frozen dataclasses. They refuse a setting outside its range with `InvalidPlan`, some of
    them only in `check`.

    Attributes:
        published_accounting: how the mechanism's paper accounts for its fixed-size draws, for reproduction;
            None where the paper has no such accounting.
        refused_settings: settings that other mechanisms have and this one cannot, each with the reason.
        draws_once: whether one draw of all records serves every text of a stratum, and the model reads none:
            of `WordHistogram` alone, and of what wraps one. docs/architecture.md lists who asks.
    """

    published_accounting: ClassVar[PublishedAccounting | None] = None
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType({})
    draws_once: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What output lines, plans and the command line call it."""

    @property
    @abstractmethod
    def top_k(self) -> int | None:
        """K, how many of the likeliest public tokens are candidates (RVP); None is the whole vocabulary."""

    def check(self, vocabulary_size: int) -> None:
        """Refuse settings that the backend cannot serve, and settings outside their ranges.

        Raises:
            InvalidPlan: names the setting.
        """
        if self.top_k is None:
            return
        check_whole("top_k", self.top_k)
        if self.top_k > vocabulary_size:
            raise InvalidPlan(
                f"top_k must lie between 1 and the backend's {vocabulary_size} tokens, not {self.top_k}"
            )

    def planned(self, draws: Draws) -> Draws:
        """The draws that it makes, of those that a plan's settings allow: all, each of R tokens."""
        return draws

    @abstractmethod
    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """The privacy event of a whole plan.

        Raises:
            InvalidPlan: the mechanism has no proof for such draws.
        """

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float | None:  # noqa: B027 - None is the answer
        """The noise's standard deviation on a coordinate of the mean probability vector.

        Where a token is drawn from moved log-probabilities instead, one over the most nats by which the
        records can move one. None for neither.
        """

    @abstractmethod
    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """The release of one demonstration's tokens, as planned. `random_source` is for tests alone."""


class Predictions(NamedTuple):
    """The language model's next-token log-probabilities on the support, as `Release.token` takes them."""

    private: Logprobs
    public: Logprobs


@dataclass
class BaseRelease(ABC):
    """A release from the likeliest public tokens. Subclasses are dataclasses.

    Attributes:
        top_k: K of the reduced vocabulary; None is the whole vocabulary.
        noise_multiplier: σ that every permit must have been charged for.
        random_source: for tests alone; None is the operating system's generator.
    """

    top_k: int | None
    noise_multiplier: float
    random_source: RandomSource | None

    def support(self, public_logprobs: Logprobs, excluded: frozenset[int]) -> list[int]:
        """The K likeliest public tokens. See `Release.support`."""
        return likeliest(public_logprobs, excluded, self.top_k)

    def token(self, logprobs: Logprobs, public_logprobs: Logprobs, permit: Permit) -> int:
        """Use up one token of the permit, then choose. See `Release.token`."""
        permit.use(self.noise_multiplier)
        return self.choose(Predictions(logprobs, public_logprobs))

    @abstractmethod
    def choose(self, predictions: Predictions) -> int:
        """The index in the support of the released token: the mechanism's algorithm for one token."""


def check_range(name: str, value: Any, least: float, most: float, *, without: tuple[int, ...] = ()) -> None:
    """Refuse with `InvalidPlan` a setting that is no number within least..most, or is one of `without`."""
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if not (number and least <= float(value) <= most) or value in without:
        raise InvalidPlan(f"{name} must be a number between {least:g} and {most:g}, not {value!r}")


def likeliest(public_logprobs: Logprobs, excluded: frozenset[int], top_k: int | None) -> list[int]:
    """The reduced vocabulary (Tang et al., Algorithm 1, lines 7-9): the K likeliest public tokens, ascending.

    The support depends on public numbers alone, so it costs no privacy. A NaN counts as least likely. See
    `Release.support`.
    """
    scores = np.array(public_logprobs, dtype=np.float32)
    scores[np.isnan(scores)] = -np.inf
    candidates = np.argsort(-scores, kind="stable")
    allowed = candidates[~np.isin(candidates, list(excluded))]
    kept: list[int] = np.sort(allowed[:top_k]).tolist()
    return kept
