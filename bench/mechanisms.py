"""Every mechanism on the same vectors at equal (ε, δ): prints the tables of docs/results/mechanisms.md.

    python -m bench.mechanisms DATA [CACHE]

DATA is a folder with the data sets (see bench/vectors.py, which evaluates the language model; that takes an hour on two
cores; what is in CACHE is not evaluated again). The rest takes some minutes. Thinning, repeats and the bootstrap are
seeded; the mechanisms' noise is not, so the last digits change from run to run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.vectors import DATA_SETS, DataSet, Text, collect_all, collected
from dpfewshot import _core
from dpfewshot.account.draws import Terms
from dpfewshot.account.reservation import Reservation
from dpfewshot.accounting import calibrate
from dpfewshot.accounting.events import PublishedAccounting
from dpfewshot.accounting.published import published_multiplier
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import (
    AdaDPSyn,
    Draws,
    Gaussian,
    InvisibleInk,
    Mechanism,
    PrivatePrediction,
    PublicCentred,
    ReportNoisyMax,
    RowChange,
)
from dpfewshot.mechanisms.base import likeliest

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
REPEATS = 12
RESAMPLES = 2000
TOP_K = 100
FIFTH = 0.2


@dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        name: as printed.
        mechanism: None is AdaDPSyn with the paper's ratios for the data set's task and an ε.
        row_change: the change of rows that the noise covers; Tang's √2 is that of grouped prompts.
        block: whether one draw serves a whole demonstration.
        raised: whether M is raised until the noise equals that of a fresh draw for each token.
        times: M in multiples of the data set's.
        published: whether the paper's own accounting sets the noise.
    """

    name: str
    mechanism: Mechanism | None
    row_change: RowChange = RowChange.ADDED
    block: bool = False
    raised: bool = False
    times: int = 1
    published: bool = False


TANG = "Gaussian, as published (√2)"
GAUSSIAN = "Gaussian"
CENTRED = "public-centred, three rounds"
ADADPSYN_PUBLISHED = "AdaDPSyn, paper's accounting"
ADADPSYN = "AdaDPSyn"
RAISED = "Gaussian, R = T, M raised"
CENTRED_ONCE = "public-centred, one round, C = 0.5"
CENTRED_BLOCK = "public-centred, three rounds, R = T, 2 M"
SETTINGS = (
    Setting(TANG, Gaussian(), RowChange.REPLACED),
    Setting(GAUSSIAN, Gaussian()),
    Setting("public-centred, one round, C = 0.3", PublicCentred(clip=0.3, refinements=(), contrast=0)),
    Setting(CENTRED_ONCE, PublicCentred(clip=0.5, refinements=(), contrast=0)),
    Setting("public-centred, one round, C = 0.7", PublicCentred(clip=0.7, refinements=(), contrast=0)),
    Setting(CENTRED, PublicCentred(contrast=0)),
    Setting(ADADPSYN_PUBLISHED, None, RowChange.REPLACED, published=True),
    Setting(ADADPSYN, None),
    Setting("report noisy max, 2/ε₀", ReportNoisyMax(), RowChange.REPLACED),
    Setting("report noisy max, 1/ε₀", ReportNoisyMax()),
    Setting("private prediction, c = 10", PrivatePrediction(clip=10.0)),
    Setting("private prediction, τ = 1", PrivatePrediction(clip=None, temperature=1.0)),
    Setting("InvisibleInk, τ = 1", InvisibleInk()),
    Setting("Gaussian, R = T", Gaussian(), block=True),
    Setting(RAISED, Gaussian(), block=True, raised=True),
    Setting("public-centred, three rounds, R = T", PublicCentred(contrast=0), block=True),
    Setting(CENTRED_BLOCK, PublicCentred(contrast=0), block=True, times=2),
    Setting(
        "public-centred, three rounds, R = T, M raised", PublicCentred(contrast=0), block=True, raised=True
    ),
)


@dataclass(frozen=True)
class Planned:
    """A setting at one ε for one population."""

    mechanism: Mechanism
    draws: Draws
    noise_multiplier: float


@functools.cache
def planned(setting: Setting, name: str, epsilon: float, population: int, most: int | None = None) -> Planned:
    """The least noise that meets (ε, δ); where M is raised, to `most` prompts or to the population."""
    data_set = DATA_SETS[name]
    if not setting.raised:
        return _planned(setting, data_set, epsilon, population, setting.times * data_set.prompts)
    fresh = _planned(
        dataclasses.replace(setting, block=False), data_set, epsilon, population, data_set.prompts
    )
    goal = noise_of(fresh)
    low, high = data_set.prompts, most or population
    while high - low > 1:
        middle = (low + high) // 2
        meets = noise_of(_planned(setting, data_set, epsilon, population, middle)) <= goal
        low, high = (low, middle) if meets else (middle, high)
    return _planned(setting, data_set, epsilon, population, high)


def noise_of(plan: Planned) -> float:
    """The standard deviation of the noise on the mean; 0 of a mechanism that adds none to it."""
    return plan.mechanism.noise_on_mean(plan.draws, plan.noise_multiplier) or 0.0


def _planned(setting: Setting, data_set: DataSet, epsilon: float, population: int, prompts: int) -> Planned:
    mechanism = setting.mechanism or AdaDPSyn.preset(data_set.task.name, epsilon=epsilon)
    # Free labels draw from the whole data set in sequence, fixed ones from disjoint strata.
    demonstrations = 1 if data_set.task.labels else len(data_set.labels)
    length = data_set.max_tokens if setting.block else 1
    draws = Draws(
        sampling_rate=prompts / population,
        steps=demonstrations * -(-data_set.max_tokens // length),
        tokens_per_draw=length,
        prompts=prompts,
        row_change=setting.row_change,
    )
    if setting.published:
        sigma = _published(prompts, population, draws.steps, epsilon)
    else:
        sigma = calibrate(lambda noise: mechanism.event(draws, noise), epsilon=epsilon, delta=DELTA)
    return Planned(mechanism, draws, sigma)


def _published(prompts: int, population: int, steps: int, epsilon: float) -> float:
    """The paper's σ; NaN if no noise reaches ε, since its bound does not fall to 0."""
    try:
        return published_multiplier(
            PublishedAccounting.RENYI, prompts, population, steps, epsilon=epsilon, delta=DELTA
        )
    except InvalidPlan:
        return math.nan


@dataclass(frozen=True)
class Score:
    """One setting's results on one text: sums over its tokens and repeats."""

    tokens: int
    agreed: int
    mass: float


def score(plan: Planned, text: Text, length: int, generator: np.random.Generator) -> Score:
    """Releases every token of a text several times, each after the text's own tokens."""
    agreed, mass = 0, 0.0
    positions = len(text.public)
    unpaid = Reservation.make(None, Terms(None, None, REPEATS * positions, 1, plan.noise_multiplier, {}))
    for _ in range(REPEATS):
        release = plan.mechanism.start(plan.draws, plan.noise_multiplier)
        drawn = _thinned(text, plan.draws.prompts, generator)
        for position in range(positions):
            if position % length == 0:
                drawn = _thinned(text, plan.draws.prompts, generator)
            rows, public = text.rows[position][drawn], text.public[position]
            support = release.support(public, frozenset())
            winner = release.token(
                np.ascontiguousarray(rows[:, support]),
                public[support],
                unpaid.draw(),
            )
            candidates = likeliest(public, frozenset(), TOP_K)
            noiseless = _core.sum_of_probabilities(np.ascontiguousarray(rows[:, candidates]))
            released = -1 if winner is None else support[winner]
            agreed += candidates[int(np.argmax(noiseless))] == released
            mass += float(np.exp(rows[:, released]).mean()) if len(rows) and released >= 0 else 0.0
    return Score(REPEATS * positions, agreed, mass)


def cost(prompts: int, text: Text, tokens: int, length: int) -> float:
    """Tokens of the language model for one of T released tokens, T / R draws of M prompts."""
    suffix = float(text.suffix_tokens.mean())
    read = sum(suffix + start for start in range(0, tokens, length))
    stepped = tokens - -(-tokens // length)
    return prompts * (read + stepped) / tokens


def _thinned(text: Text, prompts: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    return np.asarray(generator.random(text.rows.shape[1]) < prompts / text.pool)


@dataclass(frozen=True)
class Cell:
    """A setting at one ε on one data set, text by text."""

    scores: tuple[Score, ...]
    prompts: tuple[int, ...]
    costs: tuple[float, ...]

    @property
    def agreement(self) -> float:
        """Share of tokens that are the noiseless argmax."""
        return sum(one.agreed for one in self.scores) / sum(one.tokens for one in self.scores)

    @property
    def mass(self) -> float:
        """Mean probability of the released token under the noiseless mean."""
        return sum(one.mass for one in self.scores) / sum(one.tokens for one in self.scores)

    @property
    def evaluated(self) -> float:
        """Tokens of the language model for one released token."""
        return float(np.mean(self.costs))

    def resampled(self) -> NDArray[np.float64]:
        """Agreement on bootstrap samples of the texts, the same samples for every cell."""
        picks = np.random.default_rng(0).integers(0, len(self.scores), (RESAMPLES, len(self.scores)))
        agreed = np.array([one.agreed for one in self.scores])[picks].sum(axis=1)
        return np.asarray(agreed / np.array([one.tokens for one in self.scores])[picks].sum(axis=1))


def measure(name: str, texts: Sequence[Text]) -> dict[tuple[str, float], Cell]:
    """Every setting at every ε. Settings with the same M and R see the same draws."""
    cells = {}
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            data_set = DATA_SETS[name]
            plans = [planned(setting, name, epsilon, text.population, data_set.pool) for text in texts]
            if any(math.isnan(plan.noise_multiplier) for plan in plans):
                continue
            length = data_set.max_tokens if setting.block else 1
            scores = tuple(
                score(plan, text, length, np.random.default_rng(number))
                for number, (plan, text) in enumerate(zip(plans, texts, strict=True))
            )
            wanted = tuple(planned(setting, name, epsilon, t.population).draws.prompts for t in texts)
            costs = (
                cost(m, text, data_set.max_tokens, length) for m, text in zip(wanted, texts, strict=True)
            )
            cells[setting.name, epsilon] = Cell(scores, wanted, tuple(costs))
        print(f"{name}: {setting.name}", file=sys.stderr)
    return cells


def table(name: str, texts: Sequence[Text], cells: dict[tuple[str, float], Cell]) -> Iterator[str]:
    """Agreement, mass and cost of one data set."""
    data_set = DATA_SETS[name]
    tokens = sum(len(text.public) for text in texts)
    sizes = sorted({text.population for text in texts})
    reached = np.mean([len(t.rows[0]) for t in texts])
    yield f"## {name}\n"
    yield (
        f"{len(texts)} texts, {tokens} tokens, n = {', '.join(map(str, sizes))}; M = {data_set.prompts}, "
        f"T = {data_set.max_tokens}, {1 if data_set.task.labels else len(data_set.labels)} demonstration(s) from the "
        f"same records; draws of {reached:.0f} prompts on average were thinned.\n"
    )
    yield "| mechanism | M | tokens | agreement at ε = 1 | 2 | 4 | 8 | mass at ε = 1 | 2 | 4 | 8 |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for setting in SETTINGS:
        row = [cells.get((setting.name, epsilon)) for epsilon in EPSILONS]
        there = [cell for cell in row if cell]
        prompts = _range([p for cell in there for p in cell.prompts])
        cost = _range([round(cell.evaluated) for cell in there])
        agreement = (f"{c.agreement:.3f} ± {c.resampled().std():.3f}" if c else "–" for c in row)
        mass = (f"{cell.mass:.3f}" if cell else "–" for cell in row)
        yield f"| {setting.name} | {prompts} | {cost} | {' | '.join(agreement)} | {' | '.join(mass)} |"
    yield ""


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}–{high}"


def expectations(found: dict[str, dict[tuple[str, float], Cell]]) -> Iterator[str]:
    """The expectations, and the findings."""
    yield "## Expected, and found\n"
    yield "| data set | expected | found | difference | holds |"
    yield "|---|---|---|---|---|"
    for name, cells in found.items():
        for better, worse in (
            ((CENTRED_ONCE, 1.0), (TANG, 4.0)),
            ((CENTRED, 1.0), (TANG, 4.0)),
            ((ADADPSYN, 1.0), (ADADPSYN_PUBLISHED, 4.0)),
        ):
            one, other = cells[better], cells[worse]
            difference = one.agreement - other.agreement
            error = float((one.resampled() - other.resampled()).std())
            yield (
                f"| {name} | {better[0]} at ε = 1 agrees at least as often as {worse[0]} at ε = 4 | "
                f"{one.agreement:.3f}, {other.agreement:.3f} | {difference:+.3f} ± {error:.3f} | "
                f"{_verdict(difference, error)} |"
            )
        for setting, plain in ((RAISED, GAUSSIAN), (CENTRED_BLOCK, GAUSSIAN)):
            for epsilon in EPSILONS:
                one, other = cells[setting, epsilon], cells[plain, epsilon]
                ratio = one.evaluated / other.evaluated
                yield (
                    f"| {name} | {setting}: at most a fifth of the tokens of {plain}, ε = {epsilon:.0f} | "
                    f"{one.evaluated:.0f} of {other.evaluated:.0f}, agreement {one.agreement:.3f}, "
                    f"{other.agreement:.3f} | a share of {ratio:.2f} | {'yes' if ratio <= FIFTH else 'no'} |"
                )
    yield ""


def _verdict(difference: float, error: float) -> str:
    if difference >= 0:
        return "yes"
    return "within one standard error" if difference >= -error else "no"


def noise_table() -> Iterator[str]:
    """Noise on the mean of the mechanisms on probabilities, at the largest TREC label's n."""
    yield "## Noise on the mean probability, TREC Location (n = 835)\n"
    yield "| mechanism | ε = 1 | 2 | 4 | 8 |"
    yield "|---|---|---|---|---|"
    for setting in SETTINGS:
        plans = [planned(setting, "TREC", epsilon, 835) for epsilon in EPSILONS]
        if all(plan.noise_multiplier > 0 and noise_of(plan) for plan in plans):
            noises = " | ".join(f"{noise_of(plan):.4f}" for plan in plans)
            yield f"| {setting.name} | {noises} |"
    yield ""


def main(data: Path, cache: Path) -> None:
    """Prints every table."""
    collect_all(data, cache)
    found = {}
    for name in DATA_SETS:
        texts = list(collected(name, cache))
        found[name] = measure(name, texts)
        print("\n".join(table(name, texts, found[name])), flush=True)
    print("\n".join([*expectations(found), *noise_table()]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else scratch))  # noqa: PLR2004
