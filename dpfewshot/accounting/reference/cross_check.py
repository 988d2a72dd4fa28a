"""The same ε by two public accountants, for comparison. Only our own figure is certified.

prv-accountant brackets compositions of Gaussians. dp-accounting's connect-the-dots estimate is pessimistic up
to its own round-off. The optional extra `accountants` installs both.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from dpfewshot.accounting.events import Event, PoissonGaussian, PoissonRandomizedResponse, flattened
from dpfewshot.accounting.pairs.randomized_response import TwoPoint
from dpfewshot.accounting.pairs.registry import dominating_pairs
from dpfewshot.errors import MissingExtra

_PRV_ERROR: Final = 5e-3, 1e-3  # of ε: absolute and relative, whichever is larger
_PRV_DELTA_ERROR: Final = 1e-3  # of δ, relative
_INTERVAL: Final = 1e-4  # dp-accounting's grid, in units of ε
_INTERVALS: Final = 1e-5, 1e-3  # the finest and the coarsest grid


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """ε of one event by other accountants: None where one does not know the event or does not converge.

    Attributes:
        prv_lower: prv-accountant's lower bound.
        prv_estimate: its estimate.
        prv_upper: its upper bound.
        dp_accounting: dp-accounting's pessimistic estimate.
    """

    prv_lower: float | None
    prv_estimate: float | None
    prv_upper: float | None
    dp_accounting: float | None

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return asdict(self)


def require() -> None:
    """Refuse to start without both accountants.

    Raises:
        MissingExtra: one of them is not installed.
    """
    with _quiet():
        try:
            import dp_accounting  # noqa: F401 - only whether it is installed
            import prv_accountant  # noqa: F401 - only whether it is installed
        except ImportError:
            raise MissingExtra("the cross-check with other accountants", "accountants") from None


def cross_check(event: Event, delta: float, certified: float) -> CrossCheck:
    """Ask both accountants for the ε of `event` at `delta`.

    Args:
        event: one event or a Composition.
        delta: δ in (0, 1).
        certified: our own ε, which sets the precision asked of them.

    Raises:
        MissingExtra: they are not installed.
    """
    require()
    events = flattened(event)
    lower, estimate, upper = _prv_bounds(events, delta, certified) or (None, None, None)
    return CrossCheck(lower, estimate, upper, dp_accounting_epsilon(events, delta, certified))


def dp_accounting_epsilon(
    events: list[Event], delta: float, certified: float, *, pessimistic: bool = True
) -> float | None:
    """dp-accounting's ε: connect-the-dots if pessimistic, else its rounded-down estimate; None if unknown."""
    known = (PoissonGaussian, PoissonRandomizedResponse)
    if not all(isinstance(event, known) for event in events):
        return None
    interval = min(max(_INTERVAL * certified, _INTERVALS[0]), _INTERVALS[1])
    with _quiet():
        losses = [_dp_accounting_loss(event, interval, pessimistic) for event in events]
        composed = functools.reduce(lambda first, second: first.compose(second), losses)
        return float(composed.get_epsilon_for_delta(delta))


def _dp_accounting_loss(event: Event, interval: float, pessimistic: bool) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, PoissonGaussian):
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sampling_rate,
            value_discretization_interval=interval,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        return loss.self_compose(event.steps)
    removed = dominating_pairs(event)[0]
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        *_log_masses(removed), pessimistic, interval, symmetric=False
    )
    return loss.self_compose(event.steps)


def _log_masses(pair: object) -> tuple[dict[int, float], dict[int, float]]:
    """Log Q and log P of a pair with two outcomes."""
    assert isinstance(pair, TwoPoint)  # noqa: S101  (for the type checker)
    upper = [math.log1p(-pair.mass), math.log(pair.mass)]
    return {0: upper[0] - pair.low, 1: upper[1] - pair.high}, dict(enumerate(upper))


def _prv_bounds(events: list[Event], delta: float, certified: float) -> tuple[float, float, float] | None:
    if not all(isinstance(event, PoissonGaussian) for event in events):
        return None
    with _quiet():
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

        variables = [
            PoissonSubsampledGaussianMechanism(
                sampling_probability=event.sampling_rate, noise_multiplier=event.noise_multiplier
            )
            for event in events
            if isinstance(event, PoissonGaussian)
        ]
        steps = [event.steps for event in events]
        try:
            accountant = PRVAccountant(
                variables,
                max_self_compositions=steps,
                eps_error=max(_PRV_ERROR[0], _PRV_ERROR[1] * certified),
                delta_error=_PRV_DELTA_ERROR * delta,
            )
            lower, estimate, upper = map(float, accountant.compute_epsilon(delta, steps))
        except (ArithmeticError, RuntimeError, ValueError, MemoryError):  # where it does not converge
            return None
    return (lower, estimate, upper) if lower <= estimate <= upper else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of their imports and settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
