"""Every mechanism on the same vectors at equal (ε, δ): the page docs/results/mechanisms.md.

    python -m bench.mechanisms DATA [CACHE] > docs/results/mechanisms.md

DATA is a folder with the data sets (see bench/vectors.py, which evaluates the language model; that takes an hour on two
cores; what is in CACHE is not evaluated again). The rest takes some minutes. Thinning, repeats and the bootstrap are
seeded; the mechanisms' noise is not, so the last digits change from run to run.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.mechanism_settings import (
    ADADPSYN,
    ADADPSYN_PUBLISHED,
    CENTRED,
    CENTRED_BLOCK,
    CENTRED_ONCE,
    EPSILONS,
    GAUSSIAN,
    RAISED,
    SETTINGS,
    TANG,
    Planned,
    noise_of,
    planned,
)
from bench.vectors import DATA_SETS, Text, collect_all, collected
from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms.vocabulary import likeliest

REPEATS = 12
RESAMPLES = 2000
TOP_K = 100
FIFTH = 0.2


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
                Permit.unpaid(1, plan.noise_multiplier),
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
    """The whole page."""
    collect_all(data, cache)
    found = {}
    header, footer = (Path(__file__).parent / "mechanisms.md").read_text(encoding="utf-8").split("<TABLES>\n")
    print(header)
    for name in DATA_SETS:
        texts = list(collected(name, cache))
        found[name] = measure(name, texts)
        print("\n".join(table(name, texts, found[name])), flush=True)
    print("\n".join([*expectations(found), footer, *noise_table()]).rstrip())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else scratch))  # noqa: PLR2004
