"""The same ε by dp-accounting, for comparison. Only our own figure is certified.

dp-accounting's connect-the-dots estimate is pessimistic up to its own round-off. The optional extra
`accountants` installs it.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from dpfewshot.accounting.events import Event, PoissonGaussian, PoissonRandomizedResponse, flattened
from dpfewshot.accounting.pairs.randomized_response import TwoPoint
from dpfewshot.accounting.pairs.registry import dominating_pairs
from dpfewshot.errors import MissingExtra

_INTERVAL: Final = 1e-4  # dp-accounting's grid, in units of ε
_INTERVALS: Final = 1e-5, 1e-3  # the finest and the coarsest grid


def require() -> None:
    """Refuse to start without dp-accounting.

    Raises:
        MissingExtra: it is not installed.
    """
    with _quiet():
        try:
            import dp_accounting  # noqa: F401 - only whether it is installed
        except ImportError:
            raise MissingExtra("the cross-check with another accountant", "accountants") from None


def cross_check(event: Event, delta: float, certified: float) -> float | None:
    """dp-accounting's pessimistic ε of `event`: None where it does not know the event.

    Args:
        event: one event or a Composition.
        delta: δ in (0, 1).
        certified: our own ε, which sets the precision asked of it.

    Raises:
        MissingExtra: it is not installed.
    """
    require()
    events = flattened(event)
    known = (PoissonGaussian, PoissonRandomizedResponse)
    if not all(isinstance(event, known) for event in events):
        return None
    interval = min(max(_INTERVAL * certified, _INTERVALS[0]), _INTERVALS[1])
    with _quiet():
        losses = [_loss(event, interval) for event in events]
        composed = functools.reduce(lambda first, second: first.compose(second), losses)
        return float(composed.get_epsilon_for_delta(delta))


def _loss(event: Event, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, PoissonGaussian):
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sampling_rate,
            value_discretization_interval=interval,
            pessimistic_estimate=True,
            use_connect_dots=True,
        )
        return loss.self_compose(event.steps)
    removed = dominating_pairs(event)[0]
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        *_log_masses(removed),
        pessimistic_estimate=True,
        value_discretization_interval=interval,
        symmetric=False,
    )
    return loss.self_compose(event.steps)


def _log_masses(pair: object) -> tuple[dict[int, float], dict[int, float]]:
    """Log Q and log P of a pair with two outcomes."""
    assert isinstance(pair, TwoPoint)  # noqa: S101  (for the type checker)
    upper = [math.log1p(-pair.mass), math.log(pair.mass)]
    return {0: upper[0] - pair.low, 1: upper[1] - pair.high}, dict(enumerate(upper))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of their imports and settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
