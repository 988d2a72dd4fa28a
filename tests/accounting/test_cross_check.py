"""Another accountant beside ours, on events that are no plain Gaussians."""

from __future__ import annotations

import pytest

from dpfewshot.accounting import (
    Composition,
    FixedSizeGaussian,
    PoissonGaussian,
    PoissonRandomizedResponse,
    epsilon,
)
from tests.support.another_accountant import cross_check


def test_what_it_does_not_know_is_none() -> None:
    response = PoissonRandomizedResponse(1 / 500, 4.57, 100)
    certified = epsilon(response, 1e-5).upper
    assert cross_check(response, 1e-5, certified) == pytest.approx(certified, rel=0.02)
    assert cross_check(FixedSizeGaussian(10, 100, 1.0, 5), 1e-5, 3.0) is None


def test_mixtures_are_checked() -> None:
    event = Composition((PoissonGaussian(0.01, 0.8, 60), PoissonRandomizedResponse(0.02, 1.5, 40)))
    ours = epsilon(event, 1e-5)
    found = cross_check(event, 1e-5, ours.upper)
    assert ours.lower <= (found or 0) <= ours.upper * 1.005
