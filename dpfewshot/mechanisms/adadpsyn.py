r"""AdaDPSyn: a projected mean whose radius, and with it the noise, follows the data (Gao et al., ICLR 2025).

The paper's symbols: p_i is the next-token distribution of prompt i on the K likeliest public tokens; M is the
number of prompts; B_r(p_i) counts the prompts within r of p_i; L(r) is the mean of the t = ⌈ρM⌉ largest
min(B_r(p_i), t); c is the centre, R the radius of the projection, λ the noise margin and T̂ the rounds. σ₀, σ₁
and σ₂ are the noise multipliers of L, of the means and of the coverage counts.

A step asks all its queries of one draw. Each query's noise multiplier, over its own sensitivity, is a
constant. So a step is one Gaussian release at (6/σ₀² + T̂/σ₂² + (T̂+1)/σ₁²)^-½, however early it stops
(docs/proofs/adadpsyn.md). Only the ratios of σ₀, σ₁ and σ₂ matter: the plan scales them to its budget.

Three departures from the paper:
- It sums c + clip_R(p_i - c), which one more row moves by up to ‖c‖ + R. Here the clipped differences are
  summed, 0 for an absent row, and M·c is added afterwards (docs/proofs/projected-mean.md).
- With one record per prompt the means have sensitivity 1 and R, not √2 and 2R: a row comes or goes.
- A noisy mean becomes a centre by projection on the simplex. The paper cuts negative coordinates and rescales
  the rest (docs/decisions/mechanisms.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting.events import PublishedAccounting, combined_multiplier, common_factor
from dpfewshot.backends.protocol import Logprobs
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import (
    BaseRelease,
    Draws,
    Predictions,
    Release,
    RowChange,
    check_range,
)
from dpfewshot.mechanisms.gaussian import (
    GaussianMechanism,
    nearest_distribution,
    noise_scale,
    squared_clip_sensitivity,
)
from dpfewshot.values import check_whole

RADIUS_QUERIES: Final = 6
"""GoodRadius halves [0, √2/2] down to θ = 0.1 in ⌈log₂(√2 / (2·0.1))⌉ = 3 turns of two queries each."""

LARGEST_RADIUS: Final = math.sqrt(2) / 2
"""Half the simplex's diameter, where both radii start."""


@dataclass(frozen=True)
class AdaDPSyn(GaussianMechanism):
    """Gao et al., Algorithm 1: the step that releases one token is `_Release.choose`.

    The defaults are the paper's for TREC at ε = 4; `preset` has the others.

    Args:
        radius_multiplier: σ₀, of the six queries of GoodRadius. Only the ratios of σ₀, σ₁ and σ₂ matter.
        mean_multiplier: σ₁, of the means.
        coverage_multiplier: σ₂, of the coverage counts.
        rounds: T̂ ≥ 1, the most reductions of the radius.
        noise_margin: λ ≥ 0, the share of the noise's norm that a reduced radius allows for.
        cluster_share: ρ in (0, 1], the share of the prompts that GoodRadius gathers.
        coverage_share: μ in [0, 1], the share of the prompts that a reduced ball must hold.
        top_k, temperature, top_p, contrast: as in `Gaussian`, for the last noisy mean.
    """

    name: ClassVar[str] = "adadpsyn"
    published_accounting: ClassVar[PublishedAccounting] = PublishedAccounting.RENYI
    radius_multiplier: float = 10.0
    mean_multiplier: float = 1.15
    coverage_multiplier: float = 5.0
    rounds: int = 1
    noise_margin: float = 0.25
    cluster_share: float = 0.8
    coverage_share: float = 0.55
    top_k: int | None = 100
    temperature: float = 0.0
    top_p: float = 1.0
    contrast: float = 0.0

    @staticmethod
    def preset(task: str, *, epsilon: float) -> AdaDPSyn:
        """The paper's settings (Tables 13 to 17) of a task at ε = 1, 2, 4 or 8; `published` has M and N."""
        return published(task, epsilon=epsilon).mechanism

    def check(self, vocabulary_size: int) -> None:
        """See `Mechanism.check`."""
        super().check(vocabulary_size)
        check_whole("rounds", self.rounds)
        for name, least, most in _RANGES:
            check_range(name, getattr(self, name), least, most)

    @property
    def queries(self) -> list[float]:
        """The noise multipliers of all queries of a step, however early it leaves the loop."""
        return (
            [self.radius_multiplier] * RADIUS_QUERIES
            + [self.coverage_multiplier] * self.rounds
            + [self.mean_multiplier] * (self.rounds + 1)
        )

    @property
    def step_multiplier(self) -> float:
        """σ_eff = (6/σ₀² + T̂/σ₂² + (T̂+1)/σ₁²)^-½ of one step (Algorithms 1, 4, 5), rounded down."""
        return combined_multiplier(self.queries)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """σ₁·Δ/M of the first mean. Later means have R or 2R in place of Δ."""
        first = self.scaled(noise_multiplier).mean_multiplier
        return first * math.sqrt(draws.row_change.rows) / draws.prompts

    def scaled(self, noise_multiplier: float) -> AdaDPSyn:
        """The same ratios, scaled so that a step has noise multiplier σ, or slightly more by rounding."""
        factor = common_factor(self.queries, noise_multiplier)
        return replace(
            self,
            radius_multiplier=factor * self.radius_multiplier,
            mean_multiplier=factor * self.mean_multiplier,
            coverage_multiplier=factor * self.coverage_multiplier,
        )

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        scaled = self.scaled(noise_multiplier)
        return _Release(self.top_k, noise_multiplier, random_source, scaled, draws.prompts, draws.row_change)


_RANGES = (
    ("rounds", 1, 100),
    ("radius_multiplier", 0.01, 1000),
    ("mean_multiplier", 0.01, 1000),
    ("coverage_multiplier", 0.01, 1000),
    ("noise_margin", 0, 100),
    ("cluster_share", 0.001, 1),
    ("coverage_share", 0, 1),
)


@dataclass
class _Release(BaseRelease):
    """The step that releases one token. `settings` holds the scaled multipliers."""

    settings: AdaDPSyn
    prompts: int
    row_change: RowChange

    def choose(self, predictions: Predictions) -> int:
        """Algorithm 1: find a good radius, refine a mean within it, and take the mean's token."""
        rows = predictions.private
        total, noise = self._refined_mean(rows, self._good_radius(rows))
        one = float(_core.grid) * self.prompts
        return self.settings.decoding.token(total / one, predictions.public, noise / one, self.random_source)

    def _good_radius(self, logprobs: Logprobs) -> float:
        """Algorithm 4, GoodRadius: bisect [0, √2/2] by noisy values of L, to a width below θ = 0.1."""
        size = math.ceil(Fraction(str(self.settings.cluster_share)) * self.prompts)
        scale = noise_scale(self.settings.radius_multiplier, (2 * size) ** 2, _core.count_grid)
        distances = _core.Distances(logprobs)
        low, high = 0.0, LARGEST_RADIUS
        for _ in range(RADIUS_QUERIES // 2):
            middle = (low + high) / 2
            scores = distances.noisy_scores((middle, middle / 2), size, scale, self.random_source)
            if max(scores) >= size**2 * _core.count_grid:  # L ≥ t, times t
                high = middle
            else:
                low = middle
        return (low + high) / 2

    def _refined_mean(self, logprobs: Logprobs, radius: float) -> tuple[NDArray[np.int64], int]:
        """Algorithms 3 and 5: M times the noisy mean on a shrinking ball, and its noise, in grid steps."""
        settings = self.settings
        squared = Fraction(self.row_change.rows)
        scale = noise_scale(settings.mean_multiplier, squared, _core.grid)
        total = _core.noisy_sum_of_probabilities(logprobs, scale, self.random_source)
        ball = LARGEST_RADIUS
        for _ in range(settings.rounds):
            noise_norm = math.sqrt(logprobs.shape[1]) * scale / _core.grid / self.prompts
            smaller = radius + settings.noise_margin * noise_norm
            centre = nearest_distribution(total, self.prompts)
            if ball < smaller or not self._covers(logprobs, centre, smaller):
                break
            ball = smaller
            squared = squared_clip_sensitivity(ball, self.row_change, _core.grid)
            scale = noise_scale(settings.mean_multiplier, squared, _core.grid)
            total = _core.noisy_sum_around(logprobs, centre, ball, self.prompts, scale, self.random_source)
        return total, scale

    def _covers(self, logprobs: Logprobs, centre: NDArray[np.int64], radius: float) -> bool:
        """Whether the ball holds μM rows, according to a noisy count."""
        scale = noise_scale(self.settings.coverage_multiplier, 1, _core.count_grid)
        held = _core.noisy_count_within(logprobs, centre, radius, scale, self.random_source)
        return held >= self.settings.coverage_share * self.prompts * _core.count_grid


# ---- the paper's settings ---------------------------------------------------------------------------------


class Preset(NamedTuple):
    """One row of Tables 13 to 17, with M and N of its task. A plan scales the multipliers to its budget."""

    mechanism: AdaDPSyn
    prompts: int
    records_per_prompt: int


EPSILONS: Final = (1, 2, 4, 8)

_TABLES: Final[dict[str, tuple[float, int, int, tuple[tuple[float, int, float, float], ...]]]] = {
    "agnews": (0.2, 10, 2, ((1.23, 1, 10, 3), (0.92, 1, 10, 3), (0.71, 1, 10, 3), (0.58, 1, 10, 3))),
    "dbpedia": (0.2, 10, 2, ((1.54, 1, 10, 3), (1.14, 1, 10, 3), (0.89, 1, 10, 3), (0.73, 1, 10, 3))),
    "trec": (0.25, 20, 2, ((2.52, 1, 17.5, 6), (1.95, 1, 15, 5), (1.15, 1, 10, 5), (1.09, 2, 15, 5))),
    "mit-g": (0.2, 40, 1, ((1.59, 1, 15, 6), (1.17, 1, 10, 6), (1.12, 2, 10, 6), (0.90, 2, 10, 5))),
    "mit-d": (0.15, 40, 1, ((2.57, 1, 17.5, 6), (1.49, 1, 17.5, 6), (1.07, 1, 15, 6), (0.83, 1, 15, 5))),
}
"""Tables 13 to 17: λ, M and N of each task; and σ₁, T̂, σ₀ and σ₂ at each of the four ε."""

TASKS: Final = tuple(_TABLES)


def published(task: str, *, epsilon: float) -> Preset:
    """The paper's settings for a task at an ε; `InvalidPlan` lists the rows that the paper has."""
    name = task.lower().replace("_", "-")
    if name not in _TABLES or epsilon not in EPSILONS:
        raise InvalidPlan(
            f"AdaDPSyn has no preset for task {task!r} at epsilon={epsilon}: "
            f"the presets are {', '.join(_TABLES)}, each at epsilon={', '.join(map(str, EPSILONS))}"
        )
    margin, prompts, records_per_prompt, rows = _TABLES[name]
    mean, rounds, radius, coverage = rows[EPSILONS.index(int(epsilon))]
    return Preset(AdaDPSyn(radius, mean, coverage, rounds, margin), prompts, records_per_prompt)
