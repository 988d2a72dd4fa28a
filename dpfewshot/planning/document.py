"""What the JSON documents of plans consist of: the kinds of their members, rates, amounts and events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

from dpfewshot.accounting import Event, events
from dpfewshot.budget.amounts import Amount
from dpfewshot.errors import InvalidPlan
from dpfewshot.values import Relation

_NUMBER: Final = (int, float)
_MAYBE_NUMBER: Final = (int, float, type(None))
_MAYBE_TEXT: Final = (str, type(None))

PLAN: Final[Mapping[str, tuple[type, ...]]] = {
    "mechanism": (str,),
    "relation": (str,),
    "epsilon": _MAYBE_NUMBER,
    "delta": _MAYBE_NUMBER,
    "prompts_per_token": (int,),
    "records_per_prompt": (int,),
    "max_tokens": (int,),
    "shots_per_label": (int,),
    "resample_every": (int,),
    "sampling": (str,),
    "prompt_tokens": (int,),
    "estimated_seconds": _MAYBE_NUMBER,
    "warnings": (list,),
    "parts": (list,),
}
STRATUM: Final[Mapping[str, tuple[type, ...]]] = {
    "scope": _MAYBE_TEXT,
    "labels": (list,),
    "population": (int,),
    "sampling_rate": _NUMBER,
    "noise_multiplier": _NUMBER,
    "steps": (int,),
    "epsilon": _MAYBE_NUMBER,
    "delta": _MAYBE_NUMBER,
    "noise_on_mean": _MAYBE_NUMBER,
}
EXACT: Final[Mapping[str, tuple[type, ...]]] = {
    "sampling_rate": (list,),
    "cost": (list, type(None)),
    "event": (dict, type(None)),
}

_EVENTS: Final[Mapping[str, Any]] = {
    kind.__name__: kind
    for kind in (
        events.PoissonGaussian,
        events.PoissonRandomizedResponse,
        events.PoissonBoundedRange,
        events.PoissonProduct,
        events.FixedSizeGaussian,
        events.ZeroConcentrated,
        events.Composition,
        events.Tightest,
    )
}

_NESTED: Final = frozenset({"events", "queries"})
"""Members of events that hold events."""


def check(where: str, value: object, kinds: Mapping[str, tuple[type, ...]]) -> Mapping[str, Any]:
    """The value, if it is an object whose members are of these kinds, and finite where they are numbers.

    Raises:
        InvalidPlan: names the member.
    """
    if not isinstance(value, Mapping):
        raise InvalidPlan(f"{where} is not an object")
    for name, allowed in kinds.items():
        if name not in value:
            raise InvalidPlan(f"{where} has no {name!r}")
        found = value[name]
        finite = not isinstance(found, float) or math.isfinite(found)
        if not isinstance(found, allowed) or isinstance(found, bool) or not finite:
            raise InvalidPlan(f"{where} has a {name!r} of the wrong type")
    return value


def relation(value: str) -> Relation:
    """The neighbouring relation of this name.

    Raises:
        InvalidPlan: no relation has this name.
    """
    if value not in list(Relation):
        raise InvalidPlan(f"the plan's relation must be one of {', '.join(Relation)}")
    return Relation(value)


def texts(value: list[Any]) -> tuple[str, ...]:
    """A list of at least one label.

    Raises:
        InvalidPlan: it is something else.
    """
    if not value or not all(isinstance(each, str) for each in value):
        raise InvalidPlan("a stratum of the plan has 'labels' of the wrong type")
    return tuple(value)


def sentences(value: object) -> tuple[str, ...]:
    """The plan's reasons; documents of older versions have none.

    Raises:
        InvalidPlan: it is not a list of texts.
    """
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidPlan("the plan has 'reasons' of the wrong type")
    return tuple(value)


def rate(value: list[Any]) -> Fraction:
    """An exact rate from its numerator and denominator.

    Raises:
        InvalidPlan: it is not in (0, 1].
    """
    numerator, denominator = _pair(value)
    if not 0 < numerator <= denominator:
        raise InvalidPlan("a sampling rate of the plan is not in (0, 1]")
    return Fraction(numerator, denominator)


def cost(value: list[Any] | None) -> Amount | None:
    """An exact amount from its ε in 10⁻¹² and δ in 10⁻¹⁸; None without privacy.

    Raises:
        InvalidPlan: it is something else.
    """
    return None if value is None else Amount(*_pair(value))


def check_stated(where: str, told: Mapping[str, Any], epsilon: float | None, delta: float | None) -> None:
    """Refuse a document that states less than it holds: its readers show what it states.

    Args:
        where: names what states it.
        told: states "epsilon" and "delta".
        epsilon: of the exact amount; None without privacy.
        delta: of the exact amount; None without privacy.

    Raises:
        InvalidPlan: it states less, or an amount although it holds no exact one.
    """
    for name, exact in (("epsilon", epsilon), ("delta", delta)):
        stated = told[name]
        if stated is not None and (exact is None or stated < exact):
            raise InvalidPlan(f"{where} states {name}={stated}, but its exact amount is {exact}")


def _pair(value: list[Any]) -> tuple[int, int]:
    match value:
        case [int(first), int(second)] if first >= 0 and second >= 0:
            return first, second
    raise InvalidPlan("'exact' of a stratum of the plan has a number of the wrong type")


def event_as_dict(event: Event | None) -> dict[str, object] | None:
    """An event of the vocabulary (`dpfewshot.accounting.events`) as JSON; None for any other."""
    kind: Any = type(event)
    if kind not in _EVENTS.values():
        return None
    values = {field.name: getattr(event, field.name) for field in fields(kind)}
    for several in _NESTED & values.keys():
        values[several] = [event_as_dict(each) for each in values[several]]
        if None in values[several]:
            return None
    return {"event": kind.__name__} | values


def event_from_dict(value: object) -> Event | None:
    """The event that `event_as_dict` made this from.

    Raises:
        InvalidPlan: it is no such event.
    """
    if value is None:
        return None
    match value:
        case {"event": str(name), **members} if name in _EVENTS:
            arguments: dict[str, Any] = {str(member): each for member, each in members.items()}
            try:
                for several in _NESTED & arguments.keys():
                    arguments[several] = tuple(event_from_dict(each) for each in arguments[several])
                event: Event = _EVENTS[name](**arguments)
            except InvalidPlan:
                raise
            except (TypeError, ValueError, AttributeError):
                raise InvalidPlan("the plan has an event of the wrong type") from None
            return event
    raise InvalidPlan("the plan names an event that is unknown here")
