"""What the JSON documents of plans and releases consist of: kinds of members, rates, amounts and events."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

from dpfewshot.account.amounts import LARGEST, Amount
from dpfewshot.accounting import Event, events
from dpfewshot.errors import DPFewShotError, InvalidPlan
from dpfewshot.planning.settings import PlanSettings
from dpfewshot.values import PrivacySpend, Relation

NUMBER: Final = (int, float)
MAYBE_NUMBER: Final = (int, float, type(None))
MAYBE_TEXT: Final = (str, type(None))

_KINDS: Final[Mapping[str, tuple[type, ...]]] = {"int": (int,), "float": NUMBER, "str": (str,)}

PLAN: Final[Mapping[str, tuple[type, ...]]] = {
    "mechanism": (str,),
    "relation": (str,),
    "epsilon": MAYBE_NUMBER,
    "delta": MAYBE_NUMBER,
    **{field.name: _KINDS[str(field.type)] for field in fields(PlanSettings)},
    "prompt_tokens": (int,),
    "estimated_seconds": MAYBE_NUMBER,
    "reasons": (list,),
    "warnings": (list,),
    "parts": (list,),
}
STRATUM: Final[Mapping[str, tuple[type, ...]]] = {
    "scope": MAYBE_TEXT,
    "labels": (list,),
    "population": (int,),
    "sampling_rate": NUMBER,
    "noise_multiplier": NUMBER,
    "steps": (int,),
    "epsilon": MAYBE_NUMBER,
    "delta": MAYBE_NUMBER,
    "noise_on_mean": MAYBE_NUMBER,
    "exact": (dict,),
}
SPEND: Final[Mapping[str, tuple[type, ...]]] = {"epsilon": MAYBE_NUMBER, "delta": MAYBE_NUMBER}
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


def check(
    where: str,
    value: object,
    kinds: Mapping[str, tuple[type, ...]],
    error: type[DPFewShotError] = InvalidPlan,
) -> Mapping[str, Any]:
    """The value from JSON, if it is an object whose members are of these kinds; else the error names one.

    Numbers must fit in a float. Only `bool` allows a boolean. `where` names the value, here and below.
    """
    if not isinstance(value, Mapping):
        raise error(f"{where} is not an object")
    for name, allowed in kinds.items():
        if name not in value:
            raise error(f"{where} has no {name!r}")
        if not _is_one(value[name], allowed):
            raise error(f"{where} has a {name!r} of the wrong type")
    return value


def _is_one(found: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(found, bool):
        return bool in kinds
    if isinstance(found, NUMBER) and not abs(found) <= sys.float_info.max:  # NaN, too
        return False
    return isinstance(found, kinds)


def relation(where: str, value: str) -> Relation:
    """The neighbouring relation of this name."""
    if value not in list(Relation):
        raise InvalidPlan(f"{where}'s relation must be one of {', '.join(Relation)}")
    return Relation(value)


def spend(where: str, told: Mapping[str, Any], *, certified: bool) -> PrivacySpend | None:
    """What a release states in "epsilon" and "delta" (`SPEND`); None, and only None, if it is not certified.

    ε < 0 and a δ outside [0, 1) are refused.
    """
    match told["epsilon"], told["delta"]:
        case None, None if not certified:
            return None
        case ((int() | float() as epsilon), (int() | float() as delta)) if certified:
            if epsilon >= 0 and 0 <= delta < 1:
                return PrivacySpend(float(epsilon), float(delta))
    raise InvalidPlan(
        f"{where} has an 'epsilon' and a 'delta' that are no cost of a release with certified={certified}"
    )


def texts(where: str, name: str, value: list[Any], *, least: int = 0) -> tuple[str, ...]:
    """A list of at least so many texts."""
    if len(value) < least or not all(isinstance(each, str) for each in value):
        raise InvalidPlan(f"{where} has {name!r} of the wrong type")
    return tuple(value)


def numbers(where: str, name: str, value: list[Any]) -> tuple[float, ...]:
    """A list of finite numbers."""
    if not all(_is_one(each, NUMBER) for each in value):
        raise InvalidPlan(f"{where} has a {name!r} that is not finite numbers")
    return tuple(map(float, value))


def rate(value: list[Any]) -> Fraction:
    """An exact rate in (0, 1], from its numerator and denominator."""
    numerator, denominator = _pair(value)
    if not 0 < numerator <= denominator:
        raise InvalidPlan("a sampling rate of the plan is not in (0, 1]")
    return Fraction(numerator, denominator)


def cost(value: list[Any] | None) -> Amount | None:
    """An exact amount from its ε in 10⁻¹² and δ in 10⁻¹⁸, which an account can hold; None without privacy."""
    amount = None if value is None else Amount(*_pair(value))
    if amount is not None and not amount.fits(Amount(LARGEST, LARGEST)):
        raise InvalidPlan("a cost of the plan is more than an account can hold")
    return amount


def check_stated(where: str, told: Mapping[str, Any], held: PrivacySpend | None) -> None:
    """Refuse a document that states less than the exact amount that it holds: readers show what it states."""
    if (told["epsilon"] is None) != (told["delta"] is None):
        raise InvalidPlan(f"{where} states one of epsilon and delta alone")
    for name in ("epsilon", "delta"):
        stated, exact = told[name], getattr(held, name, None)
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
    """The event that `event_as_dict` made this from."""
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
            except (TypeError, ValueError, AttributeError, ArithmeticError):
                raise InvalidPlan("the plan has an event of the wrong type") from None
            return event
    raise InvalidPlan("the plan names an event that is unknown here")
