"""The interface of a dominating pair (P, Q): its hockey-stick curve H(ε) = sup_S P(S) - e^ε·Q(S).

Source: Zhu, Dong, Wang 2022 (dominating pairs).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]

UNIT_ROUNDOFF: Final = 2.0**-53
ROUNDINGS: Final = 8.0
"""A generous bound on the elementary roundings in each term of a curve."""


class Curve(NamedTuple):
    """A hockey-stick curve at given ε. All arrays have one length.

    Attributes:
        values: H(ε) as computed.
        errors: bounds on |values - H(ε)|.
        scaled_mass: e^ε·Q(loss > ε), which is -dH/dε; H(ε) + scaled_mass = P(loss > ε).
    """

    values: FloatArray
    errors: FloatArray
    scaled_mass: FloatArray


class Lattice(NamedTuple):
    """Where P's point masses lie, if it has no others: losses `first` + k·`gap` for whole k."""

    first: float
    gap: float


class DominatingPair(Protocol):
    """One direction of one step. The privacy loss is log dP/dQ under P."""

    @property
    def lattice(self) -> Lattice | None:
        """The losses, if they are finitely many and equally spaced; None for a density."""
        ...

    def curve(self, epsilons: FloatArray) -> Curve:
        """The hockey-stick curve at increasing epsilons, of either sign."""
        ...

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """Losses with a P-mass of about `below` under them and `above` over them. A guide, not a bound."""
        ...
