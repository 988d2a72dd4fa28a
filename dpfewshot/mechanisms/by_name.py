"""Mechanisms by their names, for the command line and for configuration files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms.adadpsyn import AdaDPSyn
from dpfewshot.mechanisms.base import BaseMechanism
from dpfewshot.mechanisms.gaussian import Gaussian
from dpfewshot.mechanisms.invisible_ink import InvisibleInk
from dpfewshot.mechanisms.private_prediction import PrivatePrediction
from dpfewshot.mechanisms.public_centred import PublicCentred
from dpfewshot.mechanisms.report_noisy_max import ReportNoisyMax
from dpfewshot.mechanisms.softmax_choice import SoftmaxChoice

MECHANISMS: Final[Mapping[str, type[BaseMechanism]]] = {
    kind.name: kind
    for kind in (
        Gaussian,
        PublicCentred,
        AdaDPSyn,
        SoftmaxChoice,
        ReportNoisyMax,
        PrivatePrediction,
        InvisibleInk,
    )
}
"""In the order in which `plan --compare` shows them."""


def by_name(name: str, **settings: object) -> BaseMechanism:
    """A mechanism with some of its settings.

    Args:
        name: one of `MECHANISMS`.
        settings: by field name; None stands for the default. Private prediction's clip and temperature
            decide each other: the one given alone counts.

    Raises:
        InvalidPlan: the mechanism or the setting does not exist; says why.
    """
    if name not in MECHANISMS:
        raise InvalidPlan(f"the mechanism must be one of {', '.join(MECHANISMS)}, not {name!r}")
    kind = MECHANISMS[name]
    given = {setting: value for setting, value in settings.items() if value is not None}
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for setting in given.keys() - known:
        reason = kind.refused_settings.get(setting, f"its settings are {', '.join(sorted(known))}")
        raise InvalidPlan(f"{name} has no {setting}: {reason}")
    return kind.from_settings(**given)
