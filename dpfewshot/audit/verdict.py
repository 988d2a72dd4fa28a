"""Turns the canary game's counts into a finding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpfewshot.accounting import epsilon
from dpfewshot.audit.bounds import Rate, epsilon_at_least
from dpfewshot.audit.findings import Figure, Finding
from dpfewshot.audit.plays import Outcome
from dpfewshot.audit.premises import Answers, Expected
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Mechanism
from dpfewshot.planning.plan import StratumPlan
from dpfewshot.values import delta_text, epsilon_text


@dataclass(frozen=True)
class Counted:
    """The counts for one stratum of a plan.

    Attributes:
        label: the demonstrations' label.
        relation: the plan's neighbouring relation.
        beta: the probability that a sound set-up fails.
        games: the outcomes; the last is of whole demonstrations.
        draws: the rates of the draws of records.
        answers: the backend's answers that changed among other prompts; None if none were compared.
    """

    label: str
    relation: str
    beta: float
    games: tuple[Outcome, ...]
    draws: tuple[Expected, ...]
    answers: Answers | None

    def faults(self) -> Iterator[str]:
        """Describe each observation that a sound set-up cannot produce."""
        for game in self.games:
            if game.room < 0:
                seen = game.counts.true_positives.estimate
                yield (
                    f"{game.game.name} revealed canaries in {seen:.1%} of the plays, but the plan allows "
                    f"{game.claimed:.1%}: there is less noise than planned, or records are drawn more often"
                )
        for drawn in self.draws:
            if not drawn.holds:
                yield (
                    f"{drawn.name}: {drawn.rate.estimate:.4f}, but the proof requires {drawn.expected:.4f}: "
                    "units are not drawn as planned"
                )
        if self.answers and self.answers.changed:
            yield (
                f"{self.answers.changed} of {self.answers.compared} answers of the backend changed among "
                "other prompts: it is not batch-invariant, so no epsilon holds"
            )


def verdict_of(mechanism: Mechanism, plan: StratumPlan, counted: Counted) -> Finding:
    """Return the finding, which fails if there is any fault.

    Args:
        mechanism: the mechanism that generates.
        plan: the stratum's plan, with a certified (ε, δ).
        counted: the game's counts.
    """
    assert plan.spend is not None  # noqa: S101 - the game refuses plans without
    claimed, delta = plan.spend.epsilon, plan.spend.delta
    faults = list(counted.faults())
    noise = _noise_at_most(counted.games)
    least = _epsilon_of(mechanism, plan, noise, delta)
    alone = epsilon_at_least(delta, counted.games[-1].counts)
    bounds = (
        Figure("epsilon, lower bound", max(least, alone), reference=claimed),
        Figure("epsilon, lower bound by counting alone", alone, reference=claimed),
    )
    noises = (
        ()
        if noise is None
        else (Figure("noise multiplier, upper bound", noise, reference=plan.noise_multiplier),)
    )
    return Finding(
        kind="canary",
        title="Canary game",
        statement=_statement(faults, max(least, alone), claimed, delta, counted.beta),
        verdict="failed" if faults else "passed",
        confidential=True,
        figures=(*bounds, *noises, *_figures(counted)),
        details={
            "label": counted.label,
            "mechanism": mechanism.name,
            "relation": counted.relation,
            "delta": delta,
            "confidence": 1 - counted.beta,
            "faults": faults,
            "games": {
                game.game.name: {
                    "plays": game.counts.true_positives.plays,
                    "canaries": game.counts.canaries,
                    "threshold": game.threshold,
                }
                for game in counted.games
            },
        },
    )


def _noise_at_most(games: tuple[Outcome, ...]) -> float | None:
    """The least bound of the first game and of games that refute the plan; None if no count gives one."""
    bounds = [game.noise_at_most() for number, game in enumerate(games) if number == 0 or game.room < 0]
    least = min(bounds)
    return None if math.isinf(least) else least


def _epsilon_of(mechanism: Mechanism, plan: StratumPlan, noise: float | None, delta: float) -> float:
    """The plan's ε with the most noise that the counts allow."""
    if noise is None:
        return 0.0
    try:
        return epsilon(mechanism.event(plan.draws, noise), delta).upper
    except InvalidPlan:  # this little noise has no claim
        return 0.0


def _statement(faults: list[str], least: float, claimed: float, delta: float, beta: float) -> str:
    promise = f"epsilon={epsilon_text(claimed)} at delta={delta_text(delta)}"
    if faults:
        return f"The set-up violates its {promise}: {'; '.join(faults)}."
    return (
        f"The game does not refute {promise}: it bounds epsilon from below by {least:.2f}, with "
        f"confidence {1 - beta:g}."
    )


def _figures(counted: Counted) -> Iterator[Figure]:
    for game in counted.games:
        yield _rate(f"{game.game.name}, false positives", game.counts.false_positives)
        yield _rate(f"{game.game.name}, true positives", game.counts.true_positives, game.claimed)
    for drawn in counted.draws:
        yield _rate(drawn.name, drawn.rate, drawn.expected)
    if counted.answers:
        yield Figure("answers changed by other prompts", float(counted.answers.changed), reference=0.0)


def _rate(name: str, rate: Rate, reference: float | None = None) -> Figure:
    return Figure(name, rate.estimate, rate.low, rate.high, reference)
