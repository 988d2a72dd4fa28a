"""The same ε by dp-accounting, whose connect-the-dots estimate is pessimistic up to its own round-off."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, Final

from dpfewshot.accounting.curves import removed_response
from dpfewshot.accounting.events import Event, PoissonGaussian, PoissonRandomizedResponse, flattened

_INTERVAL: Final = 1e-4  # dp-accounting's grid, in units of ε
_INTERVALS: Final = 1e-5, 1e-3  # the finest and the coarsest grid


def cross_check(event: Event, delta: float, certified: float) -> float | None:
    """Its ε of `event`, None where it does not know it. `certified` is ours, which sets the precision."""
    losses, interval = [], min(max(_INTERVAL * certified, _INTERVALS[0]), _INTERVALS[1])
    with warnings.catch_warnings(action="ignore"):  # of its settings
        for each in flattened(event):
            if not isinstance(each, PoissonGaussian | PoissonRandomizedResponse):
                return None
            losses.append(_loss(each, interval).self_compose(each.steps))
        composed = functools.reduce(lambda first, second: first.compose(second), losses)
        return float(composed.get_epsilon_for_delta(delta))


def _loss(event: PoissonGaussian | PoissonRandomizedResponse, interval: float) -> Any:
    """The privacy loss of one step."""
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, PoissonGaussian):
        return privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sampling_rate,
            value_discretization_interval=interval,
            pessimistic_estimate=True,
            use_connect_dots=True,
        )
    pair = removed_response(event.sampling_rate, event.epsilon)
    upper = [math.log1p(-pair.mass), math.log(pair.mass)]
    return privacy_loss_distribution.from_two_probability_mass_functions(
        {0: upper[0] - pair.low, 1: upper[1] - pair.high},
        dict(enumerate(upper)),
        pessimistic_estimate=True,
        value_discretization_interval=interval,
        symmetric=False,
    )
