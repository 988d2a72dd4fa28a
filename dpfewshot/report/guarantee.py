"""The report's first section: what the promise means for an attacker's bets and accusations."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from dpfewshot.report.contents import Contents
from dpfewshot.report.promise import UNKNOWN_UNIT, Promise, factor_text, other_world, unit_text
from dpfewshot.values import percent_text

_PRIORS: Final = ((1e-6, "1 in a million"), (1e-3, "1 in 1,000"), (0.1, "1 in 10"), (0.5, "1 in 2"))
_FALSE_ALARMS: Final = ((1e-3, "1 in 1,000"), (1e-2, "1 in 100"), (0.1, "1 in 10"))


def guarantee(contents: Contents) -> dict[str, object]:
    """Return the section's template variables."""
    unit = UNKNOWN_UNIT if contents.spending is None else unit_text(contents.spending.unit)
    promise = contents.promise
    if promise is None:
        return {"unit": unit, "no_promise": _why_none(contents)}
    return {
        "unit": unit,
        "loose": contents.loose,
        "other_world": other_world(promise.relation),
        "factor": factor_text(promise.odds_factor),
        "one_in": _one_in(promise),
        "beliefs": [(words, percent_text(promise.belief(prior))) for prior, words in _PRIORS],
        "detections": [(words, percent_text(promise.detection(rate))) for rate, words in _FALSE_ALARMS],
        "best_guess": percent_text(promise.best_guess),
    }


def _one_in(promise: Promise) -> str:
    return f"{math.floor(1 / Fraction(repr(promise.delta))):,}" if promise.delta else ""


def _why_none(contents: Contents) -> str:
    if len(contents.demonstrations) > 0:
        return (
            "Its demonstrations have none, or their neighbouring relations differ, so their ε do not add up."
        )
    return "Its inputs are neither a ledger, nor demonstrations with a guarantee, nor a plan with a budget."
