"""What the JSON documents of plans and releases consist of: kinds of members, amounts and events."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from dpfewshot.accounting import Event, events
from dpfewshot.errors import DPFewShotError, InvalidPlan
from dpfewshot.values import PrivacySpend, Relation

NUMBER: Final = (int, float)
MAYBE_NUMBER: Final = (int, float, type(None))
MAYBE_TEXT: Final = (str, type(None))

SPEND: Final[Mapping[str, tuple[type, ...]]] = {"epsilon": MAYBE_NUMBER, "delta": MAYBE_NUMBER}


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


def numbers(where: str, name: str, value: list[Any]) -> tuple[float, ...]:
    """A list of finite numbers."""
    if not all(_is_one(each, NUMBER) for each in value):
        raise InvalidPlan(f"{where} has a {name!r} that is not finite numbers")
    return tuple(map(float, value))


def event_as_dict(event: Event | None) -> dict[str, object] | None:
    """An event of the vocabulary (`dpfewshot.accounting.events`) as JSON; None for any other."""
    kind: Any = type(event)
    if kind.__module__ != events.__name__:
        return None
    values = {field.name: getattr(event, field.name) for field in fields(kind)}
    nested = {
        name: [event_as_dict(each) for each in value]
        for name, value in values.items()
        if isinstance(value, tuple)
    }
    if any(None in each for each in nested.values()):
        return None
    return {"event": kind.__name__} | values | nested
