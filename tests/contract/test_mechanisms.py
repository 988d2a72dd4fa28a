"""What every mechanism must do, the package's and anybody's."""

import itertools
import math
import random
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpfewshot.account.permit import Permit
from dpfewshot.accounting import Composition, Event, Relation, Tightest, calibrate, epsilon
from dpfewshot.cli.project import MECHANISM_NAMES
from dpfewshot.errors import BudgetExceeded, InvalidPlan
from dpfewshot.mechanisms import (
    MECHANISMS,
    AdaDPSyn,
    Draws,
    FixedSize,
    Gaussian,
    InvisibleInk,
    Mechanism,
    PrivatePrediction,
    PublicCentred,
    ReportNoisyMax,
    RowChange,
    SparseVector,
    by_name,
)

Rows = NDArray[np.float32]
Make = Callable[..., Mechanism]

TOKENS = 12
SIGMA = 1.5
DRAWS = Draws(0.05, 3, 1, 4, RowChange.ADDED)
PUBLIC = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))


def sparse(make: Make) -> Make:
    return lambda **settings: SparseVector(make(**settings), threshold=0.5, releases=4)


SIMPLE: dict[str, Make] = {
    "gaussian": Gaussian,
    "gaussian, drawn": partial(Gaussian, temperature=0.8, top_p=0.9),
    "public-centred": PublicCentred,
    "public-centred, one round": partial(PublicCentred, refinements=()),
    "public-centred, drawn": partial(PublicCentred, temperature=0.8, top_p=0.9),
    "adadpsyn": AdaDPSyn,
    "report noisy max": ReportNoisyMax,
    "private prediction": PrivatePrediction,
    "private prediction, temperature": partial(PrivatePrediction, clip=None, temperature=2.0),
    "invisible ink": InvisibleInk,
}
MAKERS = SIMPLE | {f"sparse vector, {name}": sparse(make) for name, make in SIMPLE.items()}

every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def draws_for(mechanism: Mechanism, row_change: RowChange = RowChange.ADDED) -> Draws:
    """Draws of some, or of everybody where nothing else is allowed."""
    if isinstance(mechanism, SparseVector):
        return replace(DRAWS, sampling_rate=1.0, tokens_per_draw=TOKENS, row_change=row_change)
    return replace(DRAWS, row_change=row_change)


def started(mechanism: Mechanism, random_source=None, row_change: RowChange = RowChange.ADDED):
    return mechanism.start(draws_for(mechanism, row_change), SIGMA, random_source)


def nobody_may_ask(count: int) -> bytes:
    raise AssertionError(f"{count} bytes were drawn")


def leaves(event: Event) -> list[Event]:
    if isinstance(event, Composition | Tightest):
        return [leaf for each in event.events for leaf in leaves(each)]
    return [event]


def test_every_mechanism_is_here() -> None:
    assert {type(make()) for make in SIMPLE.values()} == set(MECHANISMS.values())


@every
def test_a_permit_comes_before_anything_else(make: Make) -> None:
    """Neither entropy nor a row is touched: the rows here are no arrays at all."""
    release = started(make(top_k=None), nobody_may_ask)
    with pytest.raises(BudgetExceeded):
        release.token(None, None, Permit(0, SIGMA))  # type: ignore[arg-type]
    with pytest.raises(BudgetExceeded):
        release.token(None, None, Permit(1, 2 * SIGMA))  # type: ignore[arg-type]


@every
def test_a_token_uses_up_one_token_of_its_permit(make: Make) -> None:
    release, permit = started(make(top_k=None)), Permit(TOKENS, SIGMA)
    rows = np.tile(PUBLIC, (3, 1))
    for _ in range(TOKENS):
        release.token(rows, PUBLIC, permit)
    with pytest.raises(BudgetExceeded):
        release.token(rows, PUBLIC, permit)


anything = st.one_of(st.floats(width=32), st.floats(-30, 0, width=32))
supports = settings(max_examples=40)


@every
@given(
    npst.arrays(np.float32, 9, elements=anything),
    st.frozensets(st.integers(0, 8), max_size=8),
    st.integers(1, 9),
)
@supports
def test_support(make: Make, public: Rows, excluded: frozenset[int], top_k: int) -> None:
    for k in (top_k, None):
        kept = started(make(top_k=k), nobody_may_ask).support(public, excluded)
        assert kept
        assert kept == sorted(set(kept))
        assert all(type(token) is int and 0 <= token < 9 for token in kept)
        assert not excluded.intersection(kept)
        assert kept == started(make(top_k=k)).support(public.copy(), excluded)
        likeliest = np.flatnonzero(public == np.nanmax(public)) if np.isfinite(public).all() else []
        if set(likeliest) - excluded:
            assert min(set(likeliest) - excluded) in kept


@every
def test_the_whole_vocabulary_is_everybody(make: Make) -> None:
    assert started(make(top_k=None)).support(PUBLIC, frozenset({2})) == [0, 1, 3, 4]


@every
def test_top_k_is_within_the_vocabulary(make: Make) -> None:
    for top_k in (0, -1, 6):
        mechanism = make(top_k=top_k)
        with pytest.raises(InvalidPlan, match="top_k"):
            mechanism.check(5)
    for within in (1, 5, None):
        mechanism = make(top_k=within)
        assert mechanism.top_k == within
        mechanism.check(5)


def bad(width: int, value: float) -> Rows:
    return np.full((3, width), value, dtype=np.float32)


ROWS: dict[str, Callable[[int], Rows]] = {
    "nobody": lambda width: np.empty((0, width), dtype=np.float32),
    "failed prompts": lambda width: bad(width, np.nan),
    "impossible": lambda width: bad(width, -np.inf),
    "infinite": lambda width: bad(width, np.inf),
    "huge": lambda width: bad(width, 3e38) * np.linspace(-1, 1, width, dtype=np.float32),
    "flat": lambda width: bad(width, -3),
}


@every
@pytest.mark.parametrize("width", [1, 2, 3000])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("row_change", RowChange)
def test_a_token_is_one_of_the_candidates(
    make: Make, width: int, rows: Callable[[int], Rows], row_change: RowChange
) -> None:
    release, permit = started(make(top_k=None), row_change=row_change), Permit(TOKENS, SIGMA)
    for public in (np.full(width, -1, np.float32), np.full(width, np.nan, np.float32)):
        for _ in range(2):
            token = release.token(rows(width), public, permit)
            assert type(token) is int
            assert 0 <= token < width


SHARPER = {
    name: make
    for name, make in SIMPLE.items()
    if not name.endswith(("drawn", "temperature", "ink"))  # these are as sharp as their temperature
}


def winners(mechanism: Mechanism, rows: Rows, sigma: float, count: int = 300) -> set[int | None]:
    draws = replace(DRAWS, tokens_per_draw=count, prompts=50)
    release, permit = mechanism.start(draws, sigma), Permit(count, sigma)
    return {release.token(rows, PUBLIC, permit) for _ in range(count)}


@pytest.mark.parametrize("make", SHARPER.values(), ids=SHARPER)
def test_little_noise_takes_what_all_expect_and_much_takes_anyone(make: Make) -> None:
    rows = np.tile(PUBLIC, (50, 1))
    assert winners(make(), rows, 1e-3, count=50) == {1}
    assert winners(make(), rows, 1e4) == set(range(5))
    assert winners(make(), rows[:0], 1e4) == set(range(5)), "nobody is there, and noise is"


@pytest.mark.parametrize("make", [Gaussian, PublicCentred, partial(AdaDPSyn, coverage_share=1.0)])
def test_a_temperature_draws_from_the_whole_noisy_vector(make: Make) -> None:
    rows = np.tile(PUBLIC, (50, 1))
    assert winners(make(temperature=1.0), rows, 1e-3) >= {0, 1, 3, 4}
    assert winners(make(temperature=1.0, top_p=0.4), rows, 1e-3) <= {1, 3}


@every
@given(
    npst.arrays(np.float32, st.tuples(st.integers(0, 6), st.just(4)), elements=anything),
    npst.arrays(np.float32, 4, elements=anything),
    st.integers(0, 2**32),
)
@supports
def test_the_same_bytes_give_the_same_tokens(make: Make, rows: Rows, public: Rows, seed: int) -> None:
    def tokens() -> list[int | None]:
        release = started(make(top_k=None), random.Random(seed).randbytes)
        permit = Permit(TOKENS, SIGMA)
        return [release.token(rows, public, permit) for _ in range(TOKENS)]

    found = tokens()
    assert found == tokens()
    assert all(token is None or 0 <= token < 4 for token in found)


@every
def test_arguments_are_left_alone_and_so_is_numpys_generator(make: Make) -> None:
    release, permit = started(make(top_k=None)), Permit(TOKENS, SIGMA)
    rows, public = np.tile(PUBLIC, (3, 1)), PUBLIC.copy()
    before = np.random.get_state()  # noqa: NPY002 - the legacy state is what must not move
    for writeable in [True, False] * (TOKENS // 2):
        rows.flags.writeable = public.flags.writeable = writeable
        assert release.token(rows, public, permit) in {*range(5), None}
    release.support(public, frozenset({1}))
    after = np.random.get_state()  # noqa: NPY002
    assert before[0] == after[0]
    assert (before[1] == after[1]).all()
    assert before[2:] == after[2:]
    assert (rows == PUBLIC).all()
    assert (public == PUBLIC).all()


@every
@pytest.mark.parametrize("row_change", RowChange)
def test_more_noise_never_costs_more(make: Make, row_change: RowChange) -> None:
    mechanism = make()
    plan = draws_for(mechanism, row_change)
    sigmas = [2.0**-6, 0.1, 0.5, 0.5000001, 1, 2, 7, 50, 1e4, 2.0**20]
    costs = [epsilon(mechanism.event(plan, sigma), 1e-5).upper for sigma in sigmas]
    assert all(less <= more for more, less in itertools.pairwise(costs))
    assert costs[0] > 1
    assert costs[-1] < 1e-3


@every
@pytest.mark.parametrize("blocks", [1, 40])
def test_an_event_is_for_the_right_neighbours_and_counts_its_draws(make: Make, blocks: int) -> None:
    mechanism = make()
    event = mechanism.event(replace(draws_for(mechanism), steps=blocks), SIGMA)
    assert event.relations == {Relation.ADD_REMOVE, Relation.ZERO_OUT}
    assert event.steps >= blocks
    assert all(leaf.steps >= blocks for leaf in leaves(event))
    twice = mechanism.event(replace(draws_for(mechanism), steps=2 * blocks), SIGMA)
    assert epsilon(twice, 1e-5).upper > epsilon(event, 1e-5).upper


@every
@pytest.mark.parametrize("sampling_rate", [0.05, 1.0])
@pytest.mark.parametrize("tokens_per_draw", [1, 40])
@pytest.mark.parametrize("target", [0.1, 1.0, 20.0])
def test_calibration(make: Make, sampling_rate: float, tokens_per_draw: int, target: float) -> None:
    mechanism = make()
    plan = Draws(sampling_rate, 40 // tokens_per_draw, tokens_per_draw, 20, RowChange.ADDED)
    if isinstance(mechanism, SparseVector) and tokens_per_draw != 40:
        with pytest.raises(InvalidPlan):
            mechanism.event(plan, SIGMA)
        return
    sigma = calibrate(lambda noise: mechanism.event(plan, noise), epsilon=target, delta=1e-5)
    spent = epsilon(mechanism.event(plan, sigma), 1e-5).upper
    assert 0.999 * target <= spent <= target
    noise = mechanism.noise_on_mean(plan, sigma)
    assert noise is None or 0 < noise < 2 * sigma


@every
def test_draws_of_fixed_size_are_for_what_adds_gaussian_noise(make: Make) -> None:
    mechanism = make()
    fixed = replace(draws_for(mechanism), row_change=RowChange.REPLACED, fixed_size=FixedSize(10, 200))
    if isinstance(mechanism, Gaussian | PublicCentred | AdaDPSyn):
        assert mechanism.event(fixed, SIGMA).relations == {Relation.REPLACE_ONE}
    else:
        with pytest.raises(InvalidPlan):
            mechanism.event(fixed, SIGMA)


def test_names_tell_the_mechanisms_apart() -> None:
    kinds = {make().name for make in MAKERS.values()}
    assert len(kinds) == len({_kind(make()) for make in MAKERS.values()})
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*( [a-z]+(-[a-z]+)*)?", name) for name in kinds)


def _kind(mechanism: Mechanism) -> tuple[type, ...]:
    inner = (type(mechanism.mechanism),) if isinstance(mechanism, SparseVector) else ()
    return (type(mechanism), *inner)


@every
def test_settings_are_frozen_and_compare(make: Make) -> None:
    mechanism = make()
    assert mechanism == make()
    assert hash(mechanism) == hash(make())
    name = fields(mechanism)[0].name  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        setattr(mechanism, name, None)


@every
def test_nothing_that_is_shown_holds_numbers_of_rows(make: Make) -> None:
    release = started(make(top_k=None))
    rows = np.full((3, 5), -1.2345678, dtype=np.float32)
    before = repr(release)
    token = release.token(rows, PUBLIC, Permit(1, SIGMA))
    assert token is not None
    assert "array" not in repr(release) + repr(make())
    assert "1.23" not in repr(release)
    assert re.sub(r"_left=\d+", "", before) == re.sub(r"_left=\d+", "", repr(release))


def test_the_command_line_knows_every_mechanism_by_its_name() -> None:
    """--help lists them without importing NumPy, so the names stand twice."""
    assert (*MECHANISMS, "word-histogram") == MECHANISM_NAMES
    assert [by_name(name).name for name in MECHANISM_NAMES] == list(MECHANISM_NAMES)


@pytest.mark.parametrize(
    ("name", "setting", "says"),
    [
        ("report-noisy-max", {"temperature": 1.0}, "the winner alone"),
        ("report-noisy-max", {"top_p": 0.9}, "the winner alone"),
        ("private-prediction", {"top_p": 0.9}, "the draw from the softmax"),
        ("invisible-ink", {"top_p": 0.9}, "the draw from the softmax"),
        ("gaussian", {"clip": 0.5}, "its settings are"),
        ("oracle", {}, "must be one of gaussian"),
    ],
)
def test_settings_that_a_mechanism_cannot_honour_are_refused_with_the_reason(
    name: str, setting: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidPlan, match=says):
        by_name(name, **setting)


def wrapping(**words: object) -> SparseVector:
    return SparseVector(**{"mechanism": Gaussian(), "threshold": 0.5, "releases": 2} | words)


OUTSIDE: list[tuple[Make, str, tuple[object, ...]]] = [
    (AdaDPSyn, "rounds", (0, -1, 1.5, True)),
    (AdaDPSyn, "radius_multiplier", (0,)),
    (AdaDPSyn, "mean_multiplier", (-1.0,)),
    (AdaDPSyn, "coverage_multiplier", (math.inf,)),
    (AdaDPSyn, "noise_margin", (-0.1, math.nan)),
    (AdaDPSyn, "cluster_share", (0, 1.1)),
    (AdaDPSyn, "coverage_share", (-0.1, 1.1)),
    *((make, "temperature", (-1.0, 101, math.nan)) for make in (Gaussian, PublicCentred, AdaDPSyn)),
    *((make, "top_p", (0, 0.0, 1.1)) for make in (Gaussian, PublicCentred, AdaDPSyn)),
    (PublicCentred, "contrast", (-0.1, 1.1, math.nan)),
    (ReportNoisyMax, "contrast", (-0.1, 1.1, math.nan, "0.3", True, [0.3])),
    (PublicCentred, "clip", (0.0, 1.5, math.nan)),
    (PrivatePrediction, "clip", (0.0, -1.0, 1000.5, math.nan)),
    *((make, "temperature", (0.0, -1.0, math.nan, math.inf)) for make in (InvisibleInk, PrivatePrediction)),
    (wrapping, "threshold", (0.0, 2.01, math.nan)),
    (wrapping, "releases", (0,)),
    (wrapping, "test_share", (0.0, 1.0)),
]


@pytest.mark.parametrize(
    ("make", "setting", "value"), [(make, name, value) for make, name, values in OUTSIDE for value in values]
)
def test_settings_outside_their_ranges_are_refused(make: Make, setting: str, value: object) -> None:
    with pytest.raises(InvalidPlan, match=setting):
        make(**{setting: value}).check(1000)


ROOT_TWO, FIRST = math.sqrt(2), AdaDPSyn().scaled(0.8).mean_multiplier


@pytest.mark.parametrize(
    ("mechanism", "added", "replaced"),
    [
        (Gaussian(), 0.8 / 40, ROOT_TWO * 0.8 / 40),
        (PublicCentred(clip=0.5, refinements=()), 0.4 / 40, 0.8 / 40),
        (AdaDPSyn(), FIRST / 40, ROOT_TWO * FIRST / 40),
        (ReportNoisyMax(), None, None),
        (InvisibleInk(temperature=0.6), 0.8 / 40, 2 * 0.8 / 40),
        (wrapping(), 0.8 / 40, ROOT_TWO * 0.8 / 40),
        (wrapping(mechanism=ReportNoisyMax()), None, None),
    ],
)
def test_noise_on_the_mean(mechanism: Mechanism, added: float | None, replaced: float | None) -> None:
    for row_change, noise in zip(RowChange, (added, replaced), strict=True):
        some = Draws(0.1, 3, 1, 40, row_change)
        assert mechanism.noise_on_mean(some, 0.8) == (noise and pytest.approx(noise, rel=1e-9))


def test_what_is_not_given_is_left_as_it_is() -> None:
    assert by_name("public-centred", clip=None, top_k=50) == PublicCentred(top_k=50)


def test_all_tokens_are_a_top_k_and_no_other_setting() -> None:
    assert by_name("public-centred", top_k="all") == PublicCentred(top_k=None)
    with pytest.raises(InvalidPlan, match="clip must be a number, not str"):
        by_name("public-centred", clip="all")
