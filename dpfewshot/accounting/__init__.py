"""Privacy accounting: certified (ε, δ) of composed privacy events, and the least noise for a target.

Pure mathematics: nothing here sees a record, an account or a file. Read the modules in this order.

    events        the vocabulary in which mechanisms state what they do
    curves        the hockey-stick curve of one query, with its round-off
    grid          one step's privacy loss on a grid, rounded upwards
    tilting       the tilt, the grid and the window that suit a goal
    compose       all steps by fast Fourier transform, with every error bounded
    pairs         the dominating pairs of one step of an event, of several queries on one draw too
    renyi         moments: for events that are known through zCDP alone, and for accounts that add them up
    bounds        ε at a δ, and δ at an ε, of any event
    calibration   the least noise multiplier whose certified ε meets a target
    published     the papers' own accounting, to reproduce their figures

A dominating pair (P, Q) is a worst case over neighbouring data sets. Its privacy loss is log dP/dQ under P.
Its hockey-stick curve H(ε) = sup_S P(S) - e^ε·Q(S) is the smallest δ at ε. A pair has two directions: the
unit is removed, or added. A bound is certified if it counts all truncation and round-off.

Proofs: docs/proofs/accounting.md.
"""

from dpfewshot.accounting.bounds import DeltaBounds, EpsilonBounds, delta, epsilon
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
    combined_multiplier,
)
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
    "calibrate",
    "combined_multiplier",
    "delta",
    "epsilon",
]
