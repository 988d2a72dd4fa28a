"""Events keep whole numbers as integers, and refuse values of another type by name."""

from collections.abc import Callable

import numpy as np
import pytest

from dpfewshot.accounting import (
    Composition,
    Event,
    FixedSizeGaussian,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
    epsilon,
)
from dpfewshot.errors import InvalidPlan


@pytest.mark.parametrize(
    "event",
    [
        PoissonGaussian(0.1, 1.0, 3.0),
        PoissonRandomizedResponse(0.1, 0.5, np.int64(3)),
        FixedSizeGaussian(3.0, np.float64(30.0), 1.0, 3),
        ZeroConcentrated(0.1, 3.0),
        PoissonProduct(0.1, (PoissonGaussian(1.0, 1.0, 2.0), PoissonGaussian(1.0, 1.0, 1)), 3.0),
    ],
)
def test_a_whole_number_becomes_an_integer(event: Event) -> None:
    counts = [getattr(event, name, 1) for name in ("steps", "sample_size", "population")]
    assert {type(count) for count in counts} == {int}
    assert epsilon(event, 1e-6).upper > 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PoissonGaussian("0.1", 1.0, 1), "sampling_rate must be a number"),
        (lambda: PoissonGaussian(None, 1.0, 1), "sampling_rate must be a number"),
        (lambda: PoissonGaussian(0.1, "1", 1), "noise multiplier must be a number"),
        (lambda: PoissonGaussian(0.1, 1.0, "1"), "steps must be a whole number"),
        (lambda: PoissonGaussian(0.1, 1.0, True), "steps must be a whole number"),
        (lambda: PoissonGaussian(0.1, 1.0, 1.5), "steps must be a whole number"),
        (lambda: PoissonRandomizedResponse(0.1, [], 1), "epsilon must be a number"),
        (lambda: ZeroConcentrated("0.1", 1), "rho must be a number"),
        (lambda: FixedSizeGaussian(1, "9", 1.0, 1), "population must be a whole number"),
        (lambda: PoissonProduct(0.1, None, 1), "queries must be several events, not NoneType"),
        (lambda: PoissonProduct(0.1, (None,), 1), "a product needs"),
        (lambda: Composition(3), "events must be several events, not int"),
        (lambda: Tightest((3,)), "events alone"),
    ],
)
def test_a_value_of_another_type_is_refused(make: Callable[[], Event], says: str) -> None:
    with pytest.raises(InvalidPlan, match=says):
        make()
