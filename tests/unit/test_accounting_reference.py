"""Figures of two public accountants, and controls: an accountant with a known fault must be caught.

The figures were computed once with dp-accounting's connect-the-dots PLD and with prv-accountant 0.2.0 (at
an error of 0.01 in ε), and printed to four digits. The settings are those of Tang et al. 2024, Table 9.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from dpfewshot.accounting.pld import discretise as privacy_loss

from dpfewshot.accounting import PoissonGaussian, bounds, calibrate, delta, epsilon
from dpfewshot.accounting.pairs import DominatingPair, dominating_pairs
from dpfewshot.errors import AccountingError

ROUNDING = 5e-5  # the figures have four digits
LOOSEST = 1.005
PRV_ERROR = 0.01

# (q, T, 1/δ): each (σ, its ε by dp-accounting, by prv-accountant) and each (ε, the σ it needs).
TABLE = {
    (1 / 1500, 100, 120000): (
        [(0.51, 1.4901, 1.4900), (0.46, 2.5202, 2.5201), (0.39, 4.7822, 4.7821), (0.31, 9.2742, 9.2741)],
        [(1, 0.5454), (2, 0.4827), (4, 0.4106), (8, 0.3278)],
    ),
    (1 / 1500, 100, 30000): (
        [(0.51, 0.9649, 0.9648), (0.46, 1.7890, 1.7890), (0.39, 3.8148, 3.8147), (0.31, 7.9665, 7.9665)],
        [(1, 0.5072), (2, 0.4505), (4, 0.3852), (8, 0.3095)],
    ),
    (1 / 500, 100, 560000): (
        [(0.63, 1.6111, 1.6111), (0.54, 3.0081, 3.0081), (0.45, 5.3476, 5.3476), (0.36, 9.7984, 9.7984)],
        [(1, 0.6955), (2, 0.5997), (4, 0.4961), (8, 0.3881)],
    ),
    (1 / 500, 100, 49999): (
        [(0.63, 0.9488, 0.9488), (0.54, 2.0118, 2.0118), (0.45, 4.0239, 4.0240), (0.36, 7.7741, 7.7741)],
        [(1, 0.6237), (2, 0.5407), (4, 0.4508), (8, 0.3563)],
    ),
    (1 / 500, 100, 40000): (
        [(0.63, 0.8935, 0.8935), (0.54, 1.9188, 1.9188), (0.45, 3.8946, 3.8946), (0.36, 7.5866, 7.5866)],
        [(1, 0.6168), (2, 0.5350), (4, 0.4464), (8, 0.3532)],
    ),
    (80 / 835, 15, 5452): (
        [(1.36, 1.2636, 1.2636), (0.95, 2.5594, 2.5594), (0.69, 5.1244, 5.1244), (0.51, 10.0697, 10.0700)],
        [(1, 1.5550), (2, 1.0705), (4, 0.7720), (8, 0.5651)],
    ),
    (80 / 835, 15, 5500): (
        [(1.36, 1.2650, 1.2650), (0.95, 2.5622, 2.5622), (0.69, 5.1297, 5.1297), (0.51, 10.0793, 10.0796)],
        [(1, 1.5560), (2, 1.0711), (4, 0.7724), (8, 0.5654)],
    ),
    (80 / 835, 15, 835): (
        [(1.36, 0.9505, 0.9505), (0.95, 1.9349, 1.9349), (0.69, 3.9546, 3.9546), (0.51, 7.9675, 7.9678)],
        [(1, 1.3226), (2, 0.9355), (4, 0.6866), (8, 0.5091)],
    ),
    (80 / 2953, 80, 2953): (
        [(1.08, 0.9854, 0.9854), (0.81, 1.9942, 1.9942), (0.64, 3.8426, 3.8426), (0.50, 7.7043, 7.7043)],
        [(1, 1.0727), (2, 0.8091), (4, 0.6310), (8, 0.4933)],
    ),
    (80 / 1561, 80, 1561): (
        [(1.52, 0.9978, 0.9978), (1.04, 1.9764, 1.9764), (0.77, 3.8811, 3.8811), (0.58, 7.9349, 7.9349)],
        [(1, 1.5180), (2, 1.0340), (4, 0.7605), (8, 0.5782)],
    ),
}

# (q, T, 1/δ, tokens R on one draw, ε, the σ of a token)
BLOCKS = [
    (1 / 1500, 100, 30000, 2, 1, 0.6886),
    (1 / 1500, 100, 30000, 100, 1, 3.5412),
    (1 / 1500, 100, 30000, 20, 4, 1.4413),
    (1 / 500, 100, 40000, 10, 2, 1.4882),
    (80 / 835, 15, 835, 4, 2, 1.5002),  # 15 tokens in 4 blocks
    (80 / 835, 15, 835, 15, 8, 1.3027),
    (80 / 2953, 80, 2953, 20, 1, 3.2740),
    (80 / 1561, 80, 1561, 80, 4, 3.9496),
]

EPSILONS = [(key, *figures) for key, (forward, _) in TABLE.items() for figures in forward]
SIGMAS = [(key, target, figure) for key, (_, backward) in TABLE.items() for target, figure in backward]


@pytest.mark.parametrize(("key", "sigma", "figure", "of_prv"), EPSILONS)
def test_epsilon_of_printed_noise(
    key: tuple[float, int, int], sigma: float, figure: float, of_prv: float
) -> None:
    q, steps, inverse_delta = key
    found = epsilon(PoissonGaussian(q, sigma, steps), 1 / inverse_delta)
    assert figure - ROUNDING <= found.upper <= figure * LOOSEST
    assert 0.9 * figure <= found.lower <= figure + ROUNDING
    assert abs(found.upper - of_prv) <= PRV_ERROR + ROUNDING


@pytest.mark.parametrize(("key", "target", "figure"), SIGMAS)
def test_noise_for_printed_epsilon(key: tuple[float, int, int], target: float, figure: float) -> None:
    q, steps, inverse_delta = key
    sigma = calibrate(lambda sigma: PoissonGaussian(q, sigma, steps), epsilon=target, delta=1 / inverse_delta)
    assert figure - ROUNDING <= sigma <= figure * LOOSEST
    assert epsilon(PoissonGaussian(q, sigma, steps), 1 / inverse_delta).upper <= target


@pytest.mark.parametrize("row", BLOCKS)
def test_noise_of_a_token_where_tokens_share_a_draw(row: tuple[float, int, int, int, float, float]) -> None:
    q, steps, inverse_delta, tokens, target, figure = row

    def block(sigma: float) -> PoissonGaussian:
        return PoissonGaussian(q, sigma / math.sqrt(tokens), math.ceil(steps / tokens))

    sigma = calibrate(block, epsilon=target, delta=1 / inverse_delta)
    assert figure - ROUNDING <= sigma <= figure * LOOSEST


def random_settings(count: int) -> Iterator[tuple[float, float, int, float]]:
    source = random.Random(20240)
    for _ in range(count):
        yield (
            10 ** source.uniform(-3.5, 0),
            math.exp(source.uniform(math.log(0.4), math.log(10))),
            round(math.exp(source.uniform(0, math.log(1000)))),
            10 ** source.uniform(-9, -1.5),
        )


@pytest.mark.parametrize(("q", "sigma", "steps", "delta_"), list(random_settings(40)))
def test_dp_accounting_agrees(q: float, sigma: float, steps: int, delta_: float) -> None:
    with warnings.catch_warnings():  # its import and its settings warn
        warnings.simplefilter("ignore")
        pytest.importorskip("dp_accounting")
        from dp_accounting.pld import privacy_loss_distribution as pld

        found = epsilon(PoissonGaussian(q, sigma, steps), delta_)
        interval = 1e-2 if found.upper > 100 else min(1e-3 * max(found.upper, 0.05), 1e-3)

        def reference(*, pessimistic: bool) -> float:
            loss = pld.from_gaussian_mechanism(
                sigma,
                sampling_prob=q,
                value_discretization_interval=interval,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
            )
            return float(loss.self_compose(steps).get_epsilon_for_delta(delta_))

        pessimistic, optimistic = reference(pessimistic=True), reference(pessimistic=False)
    if found.upper < 100:  # beyond, its truncation lifts its optimistic estimate above closed forms
        assert optimistic * (1 - 1e-9) - 1e-9 <= found.upper
    assert found.upper <= pessimistic * LOOSEST + 1e-9
    assert found.lower <= pessimistic + 1e-9


def too_small_somewhere(settings: list[tuple[float, float, int, float]]) -> bool:
    """The check of this file's figures and closed forms, in one verdict. The accountant may refuse first."""
    with suppress(AccountingError):
        return any(
            delta(PoissonGaussian(q, sigma, steps), at).upper < exact_one_step(q, sigma, at) * (1 - 1e-12)
            for q, sigma, steps, at in settings
        )
    return True


def exact_one_step(q: float, sigma: float, at: float) -> float:
    """δ of one step, of both directions, from their curves (held to quadrature in test_accounting)."""
    pairs = dominating_pairs(PoissonGaussian(q, sigma, 1))
    return max(float(pair.curve(np.array([at])).values[0]) for pair in pairs)


ONE_STEP = [(0.5, 1.0, 1, 0.1), (0.1, 0.8, 1, 1.0), (0.9, 2.0, 1, 0.5), (0.01, 0.6, 1, 2.0)]


def test_the_check_passes_the_accountant() -> None:
    assert not too_small_somewhere(ONE_STEP)


def test_the_check_catches_one_direction_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def added_only(event: PoissonGaussian) -> tuple[DominatingPair, DominatingPair]:
        return dominating_pairs(event)[1], dominating_pairs(event)[1]

    monkeypatch.setattr(bounds, "dominating_pairs", added_only)
    assert too_small_somewhere(ONE_STEP)


def rounded_down(discretise: Callable[..., privacy_loss.GridLoss]) -> Callable[..., privacy_loss.GridLoss]:
    """Losses one grid point lower: what rounding down in place of spreading does at most."""

    def discretise_down(*arguments: object) -> privacy_loss.GridLoss:
        loss = discretise(*arguments)
        return replace(loss, start=loss.start - 1, losses=loss.losses - loss.spacing)

    return discretise_down


def test_the_check_catches_losses_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfewshot.accounting.pld import tilting

    monkeypatch.setattr(tilting, "discretise", rounded_down(tilting.discretise))
    assert too_small_somewhere(ONE_STEP)
    key, sigma, figure, _ = EPSILONS[-1]
    event = PoissonGaussian(key[0], sigma, key[1])
    assert bounds.epsilon_upper(event, 1 / key[2]) < figure - ROUNDING


def test_the_check_catches_a_direction_missing_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "dominating_pairs", lambda event: (dominating_pairs(event)[1],) * 2)
    key, sigma, figure, _ = EPSILONS[0]
    assert epsilon(PoissonGaussian(key[0], sigma, key[1]), 1 / key[2]).upper < figure - ROUNDING
