"""The mechanisms: each file reads like its paper's algorithm.

A mechanism states its privacy event and releases tokens. `base` says what that takes; `gaussian` and `choice`
hold what mechanisms with Gaussian noise and with exact choices share. To add one, subclass `Mechanism` and
`BaseRelease`, and name it in `MECHANISMS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms.adadpsyn import AdaDPSyn
from dpfewshot.mechanisms.base import (
    BaseRelease,
    Draws,
    FixedSize,
    Mechanism,
    Predictions,
    Release,
    RowChange,
)
from dpfewshot.mechanisms.gaussian import Gaussian, Noiseless
from dpfewshot.mechanisms.invisible_ink import InvisibleInk
from dpfewshot.mechanisms.private_prediction import PrivatePrediction
from dpfewshot.mechanisms.public_centred import PublicCentred
from dpfewshot.mechanisms.report_noisy_max import ReportNoisyMax
from dpfewshot.mechanisms.sparse_vector import SparseVector
from dpfewshot.mechanisms.word_histogram import WordHistogram

__all__ = [
    "MECHANISMS",
    "AdaDPSyn",
    "BaseRelease",
    "Draws",
    "FixedSize",
    "Gaussian",
    "InvisibleInk",
    "Mechanism",
    "Noiseless",
    "Predictions",
    "PrivatePrediction",
    "PublicCentred",
    "Release",
    "ReportNoisyMax",
    "RowChange",
    "SparseVector",
    "WordHistogram",
    "by_name",
]

MECHANISMS: Final[Mapping[str, type[Mechanism]]] = {
    "gaussian": Gaussian,
    "public-centred": PublicCentred,
    "adadpsyn": AdaDPSyn,
    "report-noisy-max": ReportNoisyMax,
    "private-prediction": PrivatePrediction,
    "invisible-ink": InvisibleInk,
}
"""Those that choose token by token."""


def by_name(name: str, **settings: object) -> Mechanism:
    """A mechanism with some of its settings, for the command line and for configuration files.

    Args:
        name: one of `MECHANISMS`, or "word-histogram".
        settings: by field name; None stands for the default, and the top_k "all" for no limit.

    Raises:
        InvalidPlan: the mechanism or the setting does not exist; says why.
    """
    every: dict[str, type[Mechanism]] = {**MECHANISMS, WordHistogram.name: WordHistogram}
    if name not in every:
        raise InvalidPlan(f"the mechanism must be one of {', '.join(every)}, not {name!r}")
    kind = every[name]
    given = {setting: value for setting, value in settings.items() if value is not None}
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for setting in sorted(given.keys() - known):
        reason = kind.refused_settings.get(setting, f"its settings are {', '.join(sorted(known))}")
        raise InvalidPlan(f"{name} has no {setting}: {reason}")
    if given.get("top_k") == "all":
        given["top_k"] = None
    return kind(**given)
