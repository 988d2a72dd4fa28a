"""The canary game: do releases reveal more about a record than the plan's ε allows?

The game plays against a synthesizer's own plan, mechanism and draws, through the code that generates its
demonstrations. It can refute a set-up, never prove one sound (docs/proofs/audit.md). There are three games:

- *one token*: the draw surely holds the canaries, and the mechanism releases one token. This exposes too
  little noise best.
- *one block*: the same, with all tokens of a draw, if there are several. This exposes noise that does not
  grow with their number.
- *one demonstration*: everything as planned, from the draws of records to the last token. This exposes faults
  of later tokens.

A word histogram is one release: the only game then is *one histogram*, whose noisy sum the attacker sees.

They replace the records and the model; the first two also the sampling rate and the number of tokens. A
fourth game replaces neither: *released texts*, in which the user's model generates all of a label's
demonstrations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from dpfewshot.account.draws import Terms
from dpfewshot.account.reservation import Reservation
from dpfewshot.accounting import Event, epsilon
from dpfewshot.audit.bounds import Counts, Rate, TradeOff, epsilon_at_least, noise_at_most, trade_off
from dpfewshot.audit.canaries import (
    CANARY_WORD,
    DECOY,
    EchoCanary,
    WorstCaseModel,
    counting_model,
    telling,
    text_of_unit,
)
from dpfewshot.audit.findings import AuditFinding, Figure
from dpfewshot.audit.premises import Expected, Watch, changed_by_company
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.generation.generation import Generation, unaccounted
from dpfewshot.generation.histogram_loop import HistogramLoop
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.token_loop import TextRequest
from dpfewshot.mechanisms import Draws, Mechanism, RowChange
from dpfewshot.mechanisms.word_histogram import Expected as ExpectedWords
from dpfewshot.mechanisms.word_histogram import features, row_sum
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from dpfewshot.planning.settings import POISSON
from dpfewshot.records.units import units
from dpfewshot.runtime import progress_bar
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.synthesizer import Synthesizer
from dpfewshot.values import PrivacySpend, Record, delta_text, epsilon_text

BETA: Final = 1e-3
"""The largest probability that a sound set-up fails by chance."""

_BOUNDS: Final = 12
"""Bounds of all games and premises; those of one game on texts are two."""

_LEAST_PLAYS: Final = 100
_BATCHES: Final = 2  # draws of records whose prompts the backend answers, each alone and in company

_CLAIMED: Final = 0.9
"""Largest claimed detection rate: with this many canaries, less noise would be detected nearly always."""

_CANDIDATES: Final = 100
_MOST_CANARIES: Final = 200
_RARE: Final = 100  # plays for each false positive
_RECORDS: Final = 3
"""Records of a canary if units may have several; a draw holds at most one of them."""


@redacts_errors(BackendError, "the canary game")
def canary_game(
    synthesizer: Synthesizer,
    *,
    label: str | None = None,
    plays: int = 1000,
    beta: float = BETA,
    texts_only: bool = False,
) -> AuditFinding:
    """Play with and without canaries, and bound ε from below.

    The game charges nothing and discards its tokens. Its result is confidential: it depends on the number of
    private records and on the model's answers to them.

    Args:
        synthesizer: the set-up, with a budget. Its account is not used.
        label: a planned label; by default, one of the stratum with the fewest units.
        plays: the number of plays of each game, with canaries and again without, at least 100.
        beta: β, the probability that a sound set-up fails.
        texts_only: whether to play with the user's model and records, and to look at nothing but the texts
            that a run of the plan releases (Meeus et al. 2025). A play then costs what these texts cost.
            Draws and answers are not checked.

    Returns:
        A confidential finding of kind "canary". It fails if the lower bound exceeds the plan's ε, if units
        are not drawn as the proof requires, or if the backend's answer to a prompt depends on other prompts.

    Raises:
        InvalidPlan: the plan has no certified ε or no such label, or an argument is out of range.
        BackendError: the model or its server failed.
    """
    if plays < _LEAST_PLAYS or not 0 < beta < 1:
        raise InvalidPlan("a canary game needs plays >= 100 and 0 < beta < 1")
    set_up = synthesizer.set_up
    if texts_only and set_up.mechanism.draws_once:
        raise InvalidPlan(
            f"texts of {set_up.mechanism.name} come from one release, which the game without texts_only plays"
        )
    if label is None:
        label = min(set_up.plan.strata, key=lambda stratum: stratum.population).labels[0]
    stratum = set_up.plan.stratum_of(label)
    if stratum.spend is None or not set_up.certified:
        raise InvalidPlan("the canary game tests a certified epsilon, and this plan has none")
    with progress_bar(desc="canary game", unit="play") as bar:
        table = _Table(set_up, label, plays, beta / (2 if texts_only else _BOUNDS), bar.update)
        if texts_only:
            bar.total = 2 * plays + plays // 4
            return _finding(table, stratum.spend, beta, Observed([table.released_texts()]))
        if set_up.mechanism.draws_once:
            bar.total = 2 * plays
            drawn = table.histogram_draws()
            return _finding(table, stratum.spend, beta, Observed([table.one_histogram()], drawn))
        bar.total = table.ticks
        outcomes = [outcome for tokens in table.games_of_one_draw if (outcome := table.one_draw(tokens))]
        demonstration, drawn = table.one_demonstration()
    batches = [changed_by_company(set_up, stratum, label) for _ in range(_BATCHES)]
    answers = sum(changed for changed, _ in batches), sum(compared for _, compared in batches)
    return _finding(table, stratum.spend, beta, Observed([*outcomes, demonstration], drawn, answers))


@dataclass(frozen=True)
class Game:
    """A game and the plan's claim about it: σ is as planned, `draws` and `tokens` are of one play.

    `candidates` is the number of tokens that the public prompt considers possible, and `canaries` that of the
    units in which its two worlds differ.
    """

    name: str
    mechanism: Mechanism
    draws: Draws
    planned: float
    tokens: int
    candidates: int
    canaries: int = 1

    def event(self, noise_multiplier: float) -> Event:
        """The event of one play at this noise."""
        return self.mechanism.event(self.draws, noise_multiplier)

    @property
    def claim(self) -> TradeOff:
        """The plan's claim; `InvalidPlan` if the mechanism has no such release."""
        return trade_off(self.event(self.planned))

    def with_canaries(self, by_chance: float, at_most: int) -> Game:
        """Return it with the largest canary count whose claimed detection rate stays below 0.9, at least 1.

        `by_chance` is an upper bound on the attacker's false-positive rate.
        """
        reached, canaries = self.claim.most(by_chance, 1), 1
        while canaries < at_most and (further := self.claim.most(reached, 1)) <= _CLAIMED:
            reached, canaries = further, canaries + 1
        return replace(self, canaries=canaries)


@dataclass(frozen=True)
class Outcome:
    """How often the attacker claimed canaries in a game.

    `threshold` is the least score at which it does: a number of telling tokens, or an echo of released texts.
    """

    game: Game
    threshold: float
    counts: Counts

    @property
    def claimed(self) -> float:
        """The largest true-positive rate that the plan allows."""
        return self.counts.claimed(self.game.claim)

    @property
    def room(self) -> float:
        """The distance from the attacker's rate to the claimed one; negative if the plan is refuted."""
        return self.claimed - self.counts.true_positives.low


@dataclass(frozen=True)
class Observed:
    """What was observed: games, draws, and how many of the backend's answers changed, of those compared."""

    outcomes: Sequence[Outcome]
    drawn: Sequence[Expected] = ()
    answers: tuple[int, int] | None = None

    def violations(self) -> Iterator[str]:
        """What was observed that a sound set-up cannot produce, in words."""
        for each in self.outcomes:
            if each.room < 0:
                yield (
                    f"{each.game.name} revealed canaries in {each.counts.true_positives.estimate:.1%} of the "
                    f"plays, but the plan allows {each.claimed:.1%}: there is less noise than planned, or "
                    "records are drawn more often"
                )
        for seen in self.drawn:
            if not seen.holds:
                yield (
                    f"{seen.name}: {seen.rate.estimate:.4f}, but the proof requires {seen.expected:.4f}: "
                    "units are not drawn as planned"
                )
        changed, compared = self.answers or (0, 0)
        if changed:
            yield (
                f"{changed} of {compared} answers of the backend changed among other prompts: it is not "
                "batch-invariant, so no epsilon holds"
            )

    def figures(self) -> Iterator[Figure]:
        """What the games and the checks of premises counted."""
        for each in self.outcomes:
            yield _figure(f"{each.game.name}, false positives", each.counts.false_positives)
            yield _figure(f"{each.game.name}, true positives", each.counts.true_positives, each.claimed)
        for seen in self.drawn:
            yield _figure(seen.name, seen.rate, seen.expected)
        if self.answers is not None:
            yield Figure("answers changed by other prompts", float(self.answers[0]), reference=0.0)


class _Table:
    """Plays the games. `beta` is the probability that one bound is wrong; `tick` follows each play."""

    def __init__(
        self, set_up: SetUp, label: str, plays: int, beta: float, tick: Callable[[], object]
    ) -> None:
        self.set_up, self.label, self.plays, self.beta, self._tick = set_up, label, plays, beta, tick
        self.stratum = set_up.plan.stratum_of(label)
        self._named = any(each.named for each in set_up.units.values())
        self._sizes: list[int] = set_up.bodies(self.stratum, 0).sizes.tolist()
        self._canary = _RECORDS if self._named else 1
        # Where n is fixed, canaries replace other units.
        self._room = _MOST_CANARIES if self.stratum.draws.fixed_size is None else len(self._sizes)
        self._candidates = min(set_up.mechanism.top_k or _CANDIDATES, set_up.backend.vocabulary_size)

    @property
    def games_of_one_draw(self) -> set[int]:
        """The numbers of tokens that games of one draw release."""
        return {1, self.stratum.draws.tokens_per_draw}

    @property
    def ticks(self) -> int:
        """The number of plays of all games with the worst-case model."""
        games = 1 + len(self.games_of_one_draw)
        return 2 * games * self.plays + 2 * (games - 1) * (self.plays // 4)

    def one_draw(self, tokens: int) -> Outcome | None:
        """Play some tokens of a draw with all canaries; None if the mechanism has no such release.

        If a further record adds a row, there are no other records, and noise chooses among many tokens. If it
        changes a row, each canary replaces a decoy, and noise chooses between two tokens.
        """
        adds = self.stratum.draws.row_change is RowChange.ADDED
        draws = replace(
            self.stratum.draws, sampling_rate=1.0, steps=1, tokens_per_draw=tokens, fixed_size=None
        )
        name = "one token" if tokens == 1 else "one block"
        game = self._game(name, draws, tokens, self._candidates if adds else 2)
        by_chance = self._one_of(self._candidates if adds and tokens == 1 else _RARE)
        try:
            game = game.with_canaries(by_chance, _MOST_CANARIES)
        except InvalidPlan:
            return None
        plan = self._plan(
            replace(self.stratum, sampling_rate=Fraction(1), draws=draws),
            sampling=POISSON,
            records_per_prompt=1,  # each canary has its own prompt; the noise is as planned
            max_tokens=tokens,
            tokens_per_draw=tokens,
        )
        alone = [self._canary] * game.canaries
        without, _ = self._world(game, plan, [] if adds else alone, 0 if adds else game.canaries, decoys=True)
        present, _ = self._world(game, plan, alone, game.canaries)
        return self._played(game, [without, present])

    def one_histogram(self) -> Outcome:
        """Play a word histogram with canaries alone, and with none or decoys. See `one_draw`."""
        stratum = self.stratum
        draws = replace(stratum.draws, sampling_rate=1.0, fixed_size=None)  # so noise alone hides a canary
        game = self._game("one histogram", draws, 1, 1).with_canaries(self._one_of(_RARE), _MOST_CANARIES)
        plan = self._plan(replace(stratum, sampling_rate=Fraction(1), draws=draws), sampling=POISSON)
        model, no_words = counting_model(), ExpectedWords()

        def row(text: str) -> NDArray[np.float64]:
            counted = row_sum([features(text, model.tokenize)], model.vocabulary_size, no_words)
            return counted.astype(np.float64)  # products exceed 64 bits

        adds = draws.row_change is RowChange.ADDED
        direction = row(CANARY_WORD) - (0 if adds else row(DECOY))

        def echoes(text: str, number: int) -> Iterator[float]:
            """How many canaries each noisy sum looks like; a decoy looks like the opposite of one."""
            records = self._records(lambda _: text, [self._canary] * number)
            set_up, stratum = self.set_up.over(records, model, plan), plan.stratum_of(self.label)
            unpaid = Reservation.make(None, Terms(None, None, self.plays, 1, stratum.noise_multiplier, {}))
            request = TextRequest(
                units=set_up.bodies(stratum, 0),
                sampler=set_up.sampler(stratum),
                release=set_up.release(stratum),
                reservation=unpaid,
                prompts=set_up.writer.for_label(self.label),
                max_tokens=1,
            )
            loop = cast("HistogramLoop", set_up.loop)
            for _ in range(self.plays):
                total, *_ = loop.noisy_sum(request, no_words)
                yield float(total @ direction) / float(direction @ row(CANARY_WORD))
                self._tick()

        played = list(echoes(DECOY, 0 if adds else game.canaries)), list(echoes(CANARY_WORD, game.canaries))
        return self._outcome(game, game.canaries / 2 if adds else 0, played)

    def histogram_draws(self) -> Sequence[Expected]:
        """Watch how units are drawn for a word histogram, as planned."""
        watch, sampler = Watch(), self.set_up.sampler(self.stratum)
        sizes = self.set_up.bodies(self.stratum, 0).sizes
        for _ in range(self.plays):
            watch.drawn([[unit for unit, _ in subset] for subset in sampler.draw(sizes)])
        return watch.against(self.stratum.draws, len(sizes), self.beta)

    def one_demonstration(self) -> tuple[Outcome, Sequence[Expected]]:
        """Play demonstrations from all units of a label, preceded by the canaries, and watch the draws."""
        game = self._whole("one demonstration", 1)
        plan = self._plan(self.stratum)
        others = self._sizes if game.draws.fixed_size is None else self._sizes[game.canaries :]
        joined = [*[self._canary] * game.canaries, *others]
        without, _ = self._world(game, plan, self._sizes)
        present, model = self._world(game, plan, joined, game.canaries)
        outcome = self._played(game, [without, present])
        return outcome, model.watch.against(self.stratum.draws, len(joined), self.beta)

    def released_texts(self) -> Outcome:
        """Play all of the label's demonstrations, from the user's model and units, and look at the texts.

        The rehearsal has no canaries: the attacker claims them where a text echoes more than all of it.
        """
        shots = self.set_up.plan.settings.shots_per_label
        game = self._whole("released texts", shots)
        plan = self._plan(self.stratum)

        stage = partial(self._own_generation, plan)
        without, released = stage([]), list[int]()
        without.release(self.label, game.tokens, on_token=released.append)
        canary = EchoCanary.following(released[: len(released) // 2], self.set_up, self.label)
        rehearsed = map(canary.echo, self._texts(without, game, self.plays // 4, shots))
        threshold = math.nextafter(max(rehearsed), math.inf)
        stages = without, stage([canary.record] * game.canaries)
        echoes = [
            [canary.echo(texts) for texts in self._texts(each, game, self.plays, shots)] for each in stages
        ]
        return self._outcome(game, threshold, echoes)

    def _whole(self, name: str, shots: int) -> Game:
        """The game of some whole demonstrations."""
        tokens, draws = self.set_up.plan.settings.max_tokens, self.stratum.draws
        steps = -(-tokens // draws.tokens_per_draw) * shots
        game = self._game(name, replace(draws, steps=steps), tokens, self._candidates)
        return game.with_canaries(self._one_of(_RARE), self._room)

    def _game(self, name: str, draws: Draws, tokens: int, candidates: int) -> Game:
        return Game(name, self.set_up.mechanism, draws, self.stratum.noise_multiplier, tokens, candidates)

    def _one_of(self, many: int) -> float:
        """The upper bound on the rate of an outcome that happens once in `many` plays."""
        return Rate(self.plays // many, self.plays, self.beta).high

    def _plan(self, stratum: StratumPlan, **settings: Any) -> GenerationPlan:
        """The plan with other settings, and with a stratum whose draws last for all plays."""
        plan = self.set_up.plan
        steps = self.ticks * plan.settings.max_tokens * plan.settings.shots_per_label
        lasting = replace(stratum, draws=replace(stratum.draws, steps=steps))
        return replace(
            plan,
            settings=replace(plan.settings, disjoint_parts=1, holdout=0.0, **settings),
            strata=tuple(lasting if each is self.stratum else each for each in plan.strata),
        )

    def _world(
        self, game: Game, plan: GenerationPlan, sizes: Sequence[int], canaries: int = 0, decoys: bool = False
    ) -> tuple[Generation, WorstCaseModel]:
        """A generation over units with these numbers of records; the first are canaries or decoys."""
        hints = game.candidates if game.candidates == game.mechanism.top_k else 0
        model = WorstCaseModel(game.candidates, hints, canaries, decoys=decoys)
        return unaccounted(self.set_up.over(self._records(text_of_unit, sizes), model, plan)), model

    def _records(self, text_of: Callable[[int], str], sizes: Sequence[int]) -> list[Record]:
        """The records of units with these numbers of records."""
        return [
            Record(text_of(unit), self.label, str(unit) if self._named else None)
            for unit, size in enumerate(sizes)
            for _ in range(size)
        ]

    def _own_generation(self, plan: GenerationPlan, canaries: Sequence[Record]) -> Generation:
        """A generation by the user's model over the user's records and canaries, which may replace units."""
        generating = self.set_up.bodies(self.stratum, 0).units
        replaced = 0 if self.stratum.draws.fixed_size is None else len(canaries)
        kept = map(generating.__getitem__, range(replaced, len(generating)))
        others = (record for unit in kept for record in unit if record is not None)
        joined = {**self.set_up.units, self.stratum.scope: units([*canaries, *others])}
        return unaccounted(replace(self.set_up, units=joined, plan=plan, certified=False))

    def _texts(self, generation: Generation, game: Game, plays: int, shots: int = 1) -> list[list[str]]:
        """The texts of each play."""
        played = []
        for _ in range(plays):
            played.append([generation.release(self.label, game.tokens).text for _ in range(shots)])
            self._tick()
        return played

    def _played(self, game: Game, worlds: Sequence[Generation]) -> Outcome:
        def scores(plays: int) -> list[list[int]]:
            return [[telling(text) for [text] in self._texts(world, game, plays)] for world in worlds]

        threshold = 1
        if game.tokens > 1:  # the one that tells the worlds apart best, in separate plays
            rehearsed = scores(self.plays // 4)
            threshold = min(
                range(1, game.tokens + 1),
                key=lambda least: self._outcome(game, least, rehearsed).room,
            )
        return self._outcome(game, threshold, scores(self.plays))

    def _outcome(self, game: Game, threshold: float, scores: Sequence[Sequence[float]]) -> Outcome:
        without, present = (
            Rate(sum(each >= threshold for each in world), len(world), self.beta) for world in scores
        )
        return Outcome(game, threshold, Counts(without, present, game.canaries))


def _finding(table: _Table, claimed: PrivacySpend, beta: float, observed: Observed) -> AuditFinding:
    """The finding, which fails if something was observed that a sound set-up cannot produce."""
    outcomes, faults = observed.outcomes, [*observed.violations()]
    noise = min(
        noise_at_most(each.game.event, each.game.planned, each.counts)
        for each in outcomes
        if each is outcomes[0] or each.room < 0
    )
    alone = epsilon_at_least(claimed.delta, outcomes[-1].counts)
    least = max(alone, _epsilon_of(table, noise, claimed.delta))
    promise = f"epsilon={epsilon_text(claimed.epsilon)} at delta={delta_text(claimed.delta)}"
    statement = f"The set-up violates its {promise}: {'; '.join(faults)}."
    if not faults:
        statement = (
            f"The game does not refute {promise}: it bounds epsilon from below by {least:.2f}, with "
            f"confidence {1 - beta:g}."
        )
    figures = [
        Figure("epsilon, lower bound", least, reference=claimed.epsilon),
        Figure("epsilon, lower bound by counting alone", alone, reference=claimed.epsilon),
    ]
    if math.isfinite(noise):
        figures += [Figure("noise multiplier, upper bound", noise, reference=table.stratum.noise_multiplier)]
    return AuditFinding(
        kind="canary",
        title="Canary game",
        statement=statement,
        verdict="failed" if faults else "passed",
        figures=(*figures, *observed.figures()),
        details={
            "label": table.label,
            "mechanism": table.set_up.mechanism.name,
            "relation": table.set_up.plan.relation,
            "delta": claimed.delta,
            "confidence": 1 - beta,
            "faults": faults,
            "games": {
                each.game.name: {
                    "plays": each.counts.true_positives.plays,
                    "canaries": each.counts.canaries,
                    "threshold": each.threshold,
                }
                for each in outcomes
            },
        },
    )


def _epsilon_of(table: _Table, noise: float, delta: float) -> float:
    """The plan's ε with the most noise that the counts allow; 0 if that has no bound."""
    if math.isinf(noise):
        return 0.0
    try:
        return epsilon(table.set_up.mechanism.event(table.stratum.draws, noise), delta).upper
    except InvalidPlan:
        return 0.0


def _figure(name: str, rate: Rate, reference: float | None = None) -> Figure:
    return Figure(name, rate.estimate, rate.low, rate.high, reference)
