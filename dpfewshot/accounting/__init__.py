"""Privacy accounting: certified (ε, δ) of composed privacy events, and the noise that a target needs.

events -> dominating pairs -> discretised privacy losses -> composed curve -> bounds -> calibration.
The proofs are in docs/proofs/accounting.md.
"""

from dpfewshot.accounting.bounds import delta, epsilon
from dpfewshot.accounting.calibration import calibrate
from dpfewshot.accounting.events import (
    Composition,
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
)
from dpfewshot.accounting.gaussian_queries import adadpsyn_multiplier, combined_multiplier
from dpfewshot.accounting.pld.reading import DeltaBounds, EpsilonBounds
from dpfewshot.values import Relation

__all__ = [
    "Composition",
    "DeltaBounds",
    "EpsilonBounds",
    "Event",
    "FixedSizeGaussian",
    "PoissonBoundedRange",
    "PoissonGaussian",
    "PoissonRandomizedResponse",
    "Relation",
    "Tightest",
    "ZeroConcentrated",
    "adadpsyn_multiplier",
    "calibrate",
    "combined_multiplier",
    "delta",
    "epsilon",
]
