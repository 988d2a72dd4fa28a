"""Private prediction's settings: given two of clip, temperature and prompts, the third that meets a target.

ICLInf (Li et al.), Algorithm 3, finds it by bisection over its Rényi accounting. This module calibrates the
noise multiplier once with the certified accounting, and solves σ = s·τ/c (with N > 1, s·τ/(2c)) for the
missing one. All numbers are public, and nothing is released here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpfewshot.accounting import ZeroConcentrated, calibrate
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import rounded_up
from dpfewshot.mechanisms import RowChange
from dpfewshot.mechanisms.choice import check_clip, check_temperature, solved_clip, solved_temperature
from dpfewshot.values import check_whole


@dataclass(frozen=True)
class Setting:
    """Settings of private prediction that meet a target together.

    Attributes:
        clip: c, in nats.
        temperature: τ.
        prompts: s, the constant number of prompts that the mean is taken over.
        event: all tokens at these settings; `epsilon(event, delta)` is certified.
    """

    clip: float
    temperature: float
    prompts: int
    event: ZeroConcentrated


def solve(
    *,
    epsilon: float,
    delta: float,
    tokens: int,
    clip: float | None = None,
    temperature: float | None = None,
    prompts: int | None = None,
    row_change: RowChange = RowChange.ADDED,
) -> Setting:
    """The largest clip, the lowest temperature or the fewest prompts that meet the target.

    Args:
        epsilon: the target of all tokens, ε > 0.
        delta: the target, 0 < δ < 1.
        tokens: ≥ 1, released from the same records. Amplification by sampling is not counted.
        clip: c in (0, 1000], or None to solve for it, up to 1000.
        temperature: τ in 0.001..1000, or None to solve for it.
        prompts: s ≥ 1, or None to solve for it.
        row_change: what one unit can do to the rows.

    Raises:
        InvalidPlan: not exactly one of the three is None, a value is outside its range, or no noise reaches
            the target.
    """
    if clip is not None:
        check_clip(clip)
    if temperature is not None:
        check_temperature(temperature)
    if prompts is not None:
        check_whole("prompts", prompts)
    sigma = calibrate(lambda noise: _event(1 / Fraction(noise), tokens), epsilon=epsilon, delta=delta)
    match clip, temperature, prompts:
        case None, float() | int() as tau, int() as s:
            c = solved_clip(sigma, tau, s, row_change)
        case float() | int() as c, None, int() as s:
            tau = rounded_up(solved_temperature(sigma, c, s, row_change))
        case float() | int() as c, float() | int() as tau, None:
            s = math.ceil(solved_temperature(sigma, c, 1, row_change) / Fraction(tau))
        case _:
            raise InvalidPlan("give two of clip, temperature and prompts: the third is solved for")
    inverse = row_change.rows * Fraction(c) / (Fraction(tau) * s)
    return Setting(c, tau, s, _event(inverse, tokens))


def _event(inverse: Fraction, tokens: int) -> ZeroConcentrated:
    """Tokens of ρ = 1/(2σ²) each, rounded up, from 1/σ."""
    return ZeroConcentrated(rounded_up(inverse**2 / 2), tokens)
