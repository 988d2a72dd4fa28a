r"""Public tokens for free (Amin et al. 2024): the sparse vector technique around another mechanism.

While a private test finds that the records and the public prompt predict alike, the public prompt's token is
released, and only the test costs privacy. The paper's symbols: s is the constant number of prompts; the
distance is ‖(1/s) Σ softmax(z_i) - softmax(z_pub)‖₁; θ is the threshold, σ the scale of the threshold's
noise. A token is public while distance + Lap(2σ) < θ + Lap(σ). Otherwise the test halts: the wrapped
mechanism releases one token, and a new test begins with fresh threshold noise. After r halts the
demonstration ends.

A draw of records serves r halts: its permit was charged for r tests and r private tokens, which share its
records and are sampled together (docs/proofs/product.md). So a draw should serve a whole demonstration.

Here everything is an integer: grid·s times the distance, sensitivity Δ = grid (with N > 1: 2·grid), discrete
Laplace noise of scale 2Δ/ε on the threshold and 4Δ/ε on a distance (docs/proofs/sparse-vector.md). From its
start to its halt a test costs ε, however many public tokens it lets pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting.events import (
    Composition,
    Event,
    PoissonProduct,
    PoissonRandomizedResponse,
    Query,
    Tightest,
    ZeroConcentrated,
)
from dpfewshot.backends.protocol import Logprobs
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource, rounded_up
from dpfewshot.exact.choice import discrete_laplace
from dpfewshot.mechanisms.base import Draws, Mechanism, Release, RowChange, check_range
from dpfewshot.values import check_whole

_LARGEST_DISTANCE = 2.0


@dataclass(frozen=True)
class SparseVector(Mechanism):
    """Public tokens while a private test passes, another mechanism's token where it halts.

    A draw must serve more than r tokens: set `tokens_per_draw`, best to `max_tokens`. A public token is the
    likeliest candidate of the public prompt.

    At noise multiplier σ a private token is released at σ, and a test costs ε = √(w/(1-w))/σ: ε²/2 is the
    share w of the zCDP cost 1/(2σ²) + ε²/2 of a token and its test.

    Args:
        mechanism: releases the private tokens.
        threshold: θ in (0, 2], an L1 distance of two distributions.
        releases: r ≥ 1, the most private tokens of one draw; the demonstration ends after them.
        test_share: w in (0, 1).

    Raises:
        InvalidPlan: a setting outside its range, or a sparse vector in a sparse vector.
    """

    mechanism: Mechanism
    threshold: float
    releases: int
    test_share: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.mechanism, SparseVector) or self.mechanism.draws_once:
            raise InvalidPlan("a sparse vector wraps a mechanism that releases every token")
        check_range("threshold", self.threshold, 0, _LARGEST_DISTANCE, without=(0,))
        check_whole("releases", self.releases)
        check_range("test_share", self.test_share, 0, 1, without=(0, 1))

    @property
    def name(self) -> str:
        """The wrapped mechanism's, after "sparse-vector"."""
        return f"sparse-vector {self.mechanism.name}"

    @property
    def top_k(self) -> int | None:
        """The wrapped mechanism's."""
        return self.mechanism.top_k

    def check(self, vocabulary_size: int) -> None:
        """Refuse what the wrapped mechanism refuses."""
        self.mechanism.check(vocabulary_size)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """On each draw, r private tokens and r tests on the same records.

        Raises:
            InvalidPlan: draws that serve no more than r tokens or are of a fixed size, or a mechanism whose
                tokens the accountant cannot sample together with tests.
        """
        private = self._private_draws(draws)
        cost = rounded_up(self._test_epsilon(noise_multiplier))
        if draws.sampling_rate == 1:  # all draws are the same, and any event composes
            inner = self.mechanism.event(private, noise_multiplier)
            return _with_tests(inner, PoissonRandomizedResponse(1.0, cost, private.steps), None)
        one_draw = replace(private, sampling_rate=1.0, steps=self.releases)
        inner = self.mechanism.event(one_draw, noise_multiplier)
        return _with_tests(inner, PoissonRandomizedResponse(1.0, cost, self.releases), draws)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float | None:
        """The wrapped mechanism's, on a private token."""
        return self.mechanism.noise_on_mean(draws, noise_multiplier)

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`. Raises what `event` raises."""
        inner = self.mechanism.start(self._private_draws(draws), noise_multiplier, random_source)
        test = AboveThreshold(
            math.floor(Fraction(self.threshold) * draws.prompts * _core.grid),
            threshold_rate(self._test_epsilon(noise_multiplier), draws.row_change),
            random_source,
        )
        return _Release(inner, test, noise_multiplier, draws.prompts, self.releases)

    def _private_draws(self, draws: Draws) -> Draws:
        """The draws of the plan's private tokens, counted one by one."""
        if draws.fixed_size is not None:
            raise InvalidPlan(
                "the sparse vector needs Poisson draws: its tests and tokens are sampled together, which the "
                f"accountant knows for Poisson draws alone; use {self.mechanism.name!r} without it"
            )
        if draws.tokens_per_draw <= self.releases:
            raise InvalidPlan(
                f"releases={self.releases} for each draw of {draws.tokens_per_draw} tokens leave no token "
                "that could be free: set tokens_per_draw=max_tokens, since a draw's tests and tokens share it"
            )
        return replace(draws, steps=draws.steps * self.releases, tokens_per_draw=1)

    def _test_epsilon(self, noise_multiplier: float) -> Fraction:
        """√(w/(1-w))/σ, exact but for the root, which counts as the rational number that its float is."""
        return Fraction(math.sqrt(self.test_share / (1 - self.test_share))) / Fraction(noise_multiplier)


def threshold_rate(epsilon: Fraction, row_change: RowChange) -> Fraction:
    """The threshold noise's rate ε/(2Δ): Δ = grid where a row comes or goes, 2·grid where one is replaced."""
    return epsilon / (2 * row_change.rows * _core.grid)


def _with_tests(inner: Event, tests: PoissonRandomizedResponse, draws: Draws | None) -> Event:
    """Private tokens and as many tests on the same records. A test is ε-DP, and ε²/2-zCDP beside zCDP tokens.

    `draws` are those on which both are repeated; None where every unit is in every draw.
    """
    if isinstance(inner, Tightest):  # each description of the tokens holds, so each composes with the tests
        return Tightest(tuple(_with_tests(each, tests, draws) for each in inner.events))
    if isinstance(inner, ZeroConcentrated):
        times = draws.steps if draws else 1
        rho = rounded_up(Fraction(tests.epsilon) ** 2 / 2)
        return Composition(
            (replace(inner, steps=times * inner.steps), ZeroConcentrated(rho, times * tests.steps))
        )
    if draws is None:
        return Composition((inner, tests))
    return PoissonProduct(draws.sampling_rate, (cast("Query", inner), tests), draws.steps)


class AboveThreshold:
    """Dwork and Roth 2014, Algorithm 1, on integers: runs until a noisy query reaches the noisy threshold.

    The threshold is in grid steps. `rate` is that of its discrete Laplace noise, per grid step, and a query's
    noise has half of it.
    """

    def __init__(self, threshold: int, rate: Fraction, random_source: RandomSource | None) -> None:
        self._threshold = threshold
        self._rate = rate
        self._random_source = random_source
        self._noisy_threshold = 0

    def begin(self) -> None:
        """Start a run: draw the threshold's noise."""
        self._noisy_threshold = self._threshold + self._noise(self._rate)

    def passes(self, query: int) -> bool:
        """Whether the noisy query is below the noisy threshold. If not, the run is over.

        The query is private, in grid steps; a unit changes it by at most Δ.
        """
        return query + self._noise(self._rate / 2) < self._noisy_threshold

    def _noise(self, rate: Fraction) -> int:
        return discrete_laplace(*rate.as_integer_ratio(), self._random_source)


@dataclass
class _Release:
    """A test for every token; where it halts, the wrapped mechanism's release."""

    inner: Release
    test: AboveThreshold = field(repr=False)
    noise_multiplier: float
    prompts: int
    releases: int
    _left: int = 0
    _permit: Permit | None = field(default=None, repr=False)

    def support(self, public_logprobs: Logprobs, excluded: frozenset[int]) -> list[int]:
        return self.inner.support(public_logprobs, excluded)

    def token(self, logprobs: Logprobs, public_logprobs: Logprobs, permit: Permit) -> int | None:
        permit.use(self.noise_multiplier)
        if permit is not self._permit:  # a new draw, charged for r tests
            self._permit, self._left = permit, self.releases
            self.test.begin()
        if not self._left:
            return None
        public = _core.sum_of_probabilities(public_logprobs[np.newaxis])
        if self.test.passes(distance(logprobs, public, self.prompts)):
            return int(np.argmax(public))
        self._left -= 1
        if self._left:
            self.test.begin()
        return self.inner.token(logprobs, public_logprobs, permit.pass_on())


def distance(logprobs: Logprobs, public: NDArray[np.int64], prompts: int) -> int:
    """‖Σ p_i - s·p_public‖₁ in grid steps: private. One row more or less changes it by at most `grid`.

    `public` are the public row's integers, shape (support,).
    """
    return int(np.abs(_core.sum_of_probabilities(logprobs) - prompts * public).sum())
