"""What events have in common: checks of their values, and their former attribute.

A check that fails raises InvalidPlan, which names the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, TypeVar

from dpfewshot.errors import InvalidPlan
from dpfewshot.values import Relation, as_float, check_whole

if TYPE_CHECKING:
    from dpfewshot.accounting.events import Event

T = TypeVar("T")


def check_rate(rate: float) -> None:
    """Refuse a rate outside (0, 1]."""
    if not 0 < as_float("sampling_rate", rate) <= 1:
        raise InvalidPlan(f"sampling_rate must lie in (0, 1], not {rate}")


def check_positive(name: str, value: float) -> None:
    """Refuse what is not a positive, finite number."""
    if not (math.isfinite(as_float(name, value)) and value > 0):
        raise InvalidPlan(f"{name} must be a positive number, not {value}")


def check_cost(epsilon: float, largest: float) -> None:
    """Refuse an ε₀ outside (0, largest]."""
    check_positive("epsilon", epsilon)
    if epsilon > largest:
        raise InvalidPlan(f"epsilon must be at most {largest:g}, not {epsilon}")


def check_noise(multiplier: float, least: float, most: float) -> None:
    """Refuse a noise multiplier outside [least, most]."""
    if not least <= as_float("the noise multiplier", multiplier) <= most:
        raise InvalidPlan(
            f"the noise multiplier of a draw must lie between {least} and {most:.0f}, the range "
            f"that the accounting is tested for, not {multiplier}; R tokens on one draw have sigma / sqrt(R)"
        )


def store_count(event: Event, name: str) -> None:
    """As `check_whole`, but a reviewer's 15.0 or NumPy integer is a whole number too: stored as an int."""
    number = getattr(event, name)
    real = not isinstance(number, bool) and isinstance(number, Real)
    if real and number % 1 == 0:
        number = int(number)
    check_whole(name, number)
    object.__setattr__(event, name, number)


def in_tuple(name: str, several: Iterable[T]) -> tuple[T, ...]:
    """A tuple of several: the caller may have passed a list, and change it later."""
    if not isinstance(several, Iterable):
        raise InvalidPlan(f"{name} must be several events, not {type(several).__name__}")
    return tuple(several)


def checked_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events as a tuple, if there are some and they have a relation in common."""
    events = in_tuple("events", events)
    if not events or not all(hasattr(event, "relations") for event in events):
        raise InvalidPlan("a composition needs at least one event, and events alone")
    if not shared_relations(events):
        different = " and ".join(sorted({in_words(event.relations) for event in events}))
        raise InvalidPlan(f"events for different neighbours do not compose: {different}")
    return events


def shared_relations(events: tuple[Event, ...]) -> frozenset[Relation]:
    """The relations that every event covers."""
    return frozenset.intersection(*(event.relations for event in events))


def in_words(relations: frozenset[Relation]) -> str:
    """For messages."""
    return " or ".join(sorted(relations))
