"""InvisibleInk: Top-k+ candidates and the clip that follows from the budget."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import PoissonBoundedRange, PoissonProduct, Tightest, ZeroConcentrated, calibrate
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws, InvisibleInk, RowChange

NOTHING = frozenset[int]()


def draws(prompts: int, row_change: RowChange = RowChange.ADDED) -> Draws:
    return Draws(1.0, 1, 100, prompts, row_change)


def with_clip(clip: float, prompts: int, top_k: int | None = 100):
    """A release at the noise multiplier that this clip follows from."""
    release = InvisibleInk(top_k).start(draws(prompts), prompts / clip)
    assert release.clip == pytest.approx(clip, rel=1e-12)
    return release


@pytest.mark.parametrize(
    ("target", "prompts", "rho", "clip"), [(1, 127, 0.030557, 3.1396), (8, 31, 1.229715, 4.8616)]
)
def test_the_papers_check_values(target: float, prompts: int, rho: float, clip: float) -> None:
    mechanism = InvisibleInk()
    sigma = calibrate(
        lambda noise: mechanism.event(draws(prompts), noise).events[1], epsilon=target, delta=1e-5
    )
    event = mechanism.event(draws(prompts), sigma).events[1]
    assert isinstance(event, ZeroConcentrated)
    assert event.rho * event.steps == pytest.approx(rho, rel=2e-4)
    assert mechanism.start(draws(prompts), sigma).clip == pytest.approx(clip, rel=1e-4)
    replaced = mechanism.start(draws(prompts, RowChange.REPLACED), sigma)
    assert replaced.clip == pytest.approx(clip / 2, rel=1e-4)


def test_tokens_on_one_draw_are_a_product_and_those_of_everybody_compose_one_by_one() -> None:
    """On Poisson draws, which the paper does not have."""
    mechanism, some = InvisibleInk(), Draws(0.05, 10, 4, 20, RowChange.ADDED)
    concentrated = ZeroConcentrated(0.125, 40)
    assert mechanism.event(some, 2.0) == Tightest(
        (PoissonProduct(0.05, (PoissonBoundedRange(1.0, 1.0, 4),), 10), concentrated)
    )
    everybody = mechanism.event(replace(some, sampling_rate=1.0), 2.0)
    assert everybody == Tightest((PoissonBoundedRange(1.0, 1.0, 40), concentrated))
    sigma = calibrate(lambda noise: mechanism.event(some, noise), epsilon=1.0, delta=1e-5)
    assert sigma == pytest.approx(2 / 0.795, rel=2e-3)


PUBLIC = np.array([-1.0, -4.0, -2.0, -2.6, -3.0, -9.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("clip", "kept"),
    [(1e-6, [0, 2]), (0.29, [0, 2]), (0.31, [0, 2, 3]), (0.6, [0, 2, 3, 4]), (5.0, [0, 1, 2, 3, 4, 5])],
)
def test_candidates_are_the_likeliest_and_those_close_behind(clip: float, kept: list[int]) -> None:
    """With k = 2 and one prompt the bar is -2 - 2C."""
    assert with_clip(clip, prompts=1, top_k=2).support(PUBLIC, NOTHING) == kept


def test_more_prompts_narrow_the_candidates() -> None:
    assert with_clip(5.0, prompts=100, top_k=2).support(PUBLIC, NOTHING) == [0, 2]


def test_excluded_tokens_do_not_count_for_the_kth() -> None:
    assert with_clip(1e-6, prompts=1, top_k=2).support(PUBLIC, frozenset({0})) == [2, 3]
    assert with_clip(1e-6, prompts=1, top_k=6).support(PUBLIC, frozenset({0})) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("nothing", [-math.inf, math.nan, math.inf])
def test_tokens_of_which_the_public_row_knows_nothing_are_out(nothing: float) -> None:
    public = PUBLIC.copy()
    public[[0, 3]] = nothing
    assert with_clip(5.0, 1, None).support(public, NOTHING) == [1, 2, 4, 5]
    assert with_clip(1e-6, 1, 2).support(public, NOTHING) == [2, 4]


def test_a_public_row_that_knows_nothing_is_flat() -> None:
    release = with_clip(2.0, 3, 2)
    public = np.full(4, -np.inf, dtype=np.float32)
    assert release.support(public, frozenset({0})) == [1, 2]
    rows = np.log(np.array([[0.9, 0.1]] * 30, dtype=np.float32))
    permit = Permit(200, 1.5)
    tokens = [release.token(rows, public[:2], permit) for _ in range(200)]
    assert sum(token == 0 for token in tokens) > 150


def test_a_support_wider_than_the_core_takes_is_cut_to_the_likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "WIDEST", 3)
    assert with_clip(5.0, 1, 2).support(PUBLIC, NOTHING) == [0, 2, 3]
    with pytest.raises(InvalidPlan, match="top_k"):
        InvisibleInk(top_k=None).check(6)


def test_without_records_it_is_the_public_softmax_and_with_them_it_moves() -> None:
    public = np.log(np.array([0.6, 0.3, 0.1], dtype=np.float32))
    release, permit = with_clip(2.0, 10), Permit(8000, 5.0)
    nobody, all_for_last = np.empty((0, 3), dtype=np.float32), np.tile(public[[2, 1, 0]], (10, 1))
    shares = [
        np.bincount([release.token(rows, public, permit) for _ in range(4000)], minlength=3) / 4000
        for rows in (nobody, all_for_last)
    ]
    assert shares[0] == pytest.approx([0.6, 0.3, 0.1], abs=0.05)
    assert shares[1] == pytest.approx([0.1, 0.3, 0.6], abs=0.05)
