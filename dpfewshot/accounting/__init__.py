"""Privacy accounting: certified (ε, δ) of composed privacy events, and the least noise for a target.

Pure mathematics: nothing here sees a record, an account or a file. Read the modules in this order.

    events        the vocabulary in which mechanisms state what they do
    pairs/        the dominating pair of one step of an event
    pld/          its privacy loss on a grid, composed over all steps, with every error bounded
    renyi         (ε, δ) from moments, for events that are known through zCDP alone
    bounds        ε at a δ, and δ at an ε, of any event
    calibration   the least noise multiplier whose certified ε meets a target
    reference/    the papers' own accounting and other libraries, for comparison only

A dominating pair (P, Q) is a worst case over neighbouring data sets. Its privacy loss is log dP/dQ under P.
Its hockey-stick curve H(ε) = sup_S P(S) - e^ε·Q(S) is the smallest δ at ε. A pair has two directions: the
unit is removed, or added. A bound is certified if it counts all truncation and round-off.

Proofs: docs/proofs/accounting.md.
"""

from dpfewshot.accounting.bounds import delta, epsilon
from dpfewshot.accounting.calibration import calibrate
from dpfewshot.accounting.events import (
    Composition,
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
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
    "PoissonProduct",
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
