"""The plays of the canary game: a set-up generates demonstrations from a model that gives canaries away.

There are three games:

- *one token*: the draw surely holds the canaries, and the mechanism releases one token. This exposes too
  little noise best.
- *one block*: the same, with all tokens of a draw, if there are several. This exposes noise that does not
  grow with their number.
- *one demonstration*: everything as planned, from the draws of records to the last token. This exposes faults
  of later tokens.

All follow `Synthesizer.generate` from the records to the text of a demonstration. They replace the records
and the model; the first two also the sampling rate and the number of tokens. A fourth game replaces neither:
*released texts*, in which the user's model generates all of a label's demonstrations (echo.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dpfewshot.accounting import Event
from dpfewshot.audit.bounds import Counts, Rate, TradeOff, noise_at_most
from dpfewshot.audit.echo import EchoCanary, own_generation
from dpfewshot.audit.premises import Expected
from dpfewshot.audit.worlds import Crowd, World
from dpfewshot.audit.worst_case import TELLING, WorstCaseModel
from dpfewshot.errors import InvalidPlan
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.request import GenerationRequest
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms import Draws, Mechanism, RowChange
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from dpfewshot.planning.settings import POISSON, PlanSettings
from dpfewshot.values import Record

_CLAIMED = 0.9
"""Largest claimed detection rate: with this many canaries, less noise would be detected nearly always."""

_CANDIDATES = 100
_MOST_CANARIES = 200
_RARE = 100  # plays for each false positive


@dataclass(frozen=True)
class Game:
    """A game and the plan's claim about it.

    Attributes:
        name: the game's name.
        mechanism: the mechanism that generates.
        draws: the draws of one play.
        planned: the plan's σ.
        tokens: the number of tokens of one play.
        candidates: the number of tokens that the public prompt considers possible.
    """

    name: str
    mechanism: Mechanism
    draws: Draws
    planned: float
    tokens: int
    candidates: int

    def event(self, noise_multiplier: float) -> Event:
        """The event of one play at this noise."""
        return self.mechanism.event(self.draws, noise_multiplier)

    @cached_property
    def claim(self) -> TradeOff:
        """The plan's claim.

        Raises:
            InvalidPlan: the mechanism has no such release.
        """
        return TradeOff(self.event(self.planned))

    def most_canaries(self, by_chance: float, at_most: int = _MOST_CANARIES) -> int:
        """Return the largest canary count whose claimed detection rate stays below 0.9, at least 1.

        Args:
            by_chance: an upper bound on the attacker's false-positive rate.
            at_most: the largest count to try.
        """
        reached, canaries = self.claim.most(by_chance, 1), 1
        while canaries < at_most and (further := self.claim.most(reached, 1)) <= _CLAIMED:
            reached, canaries = further, canaries + 1
        return canaries


@dataclass(frozen=True)
class Outcome:
    """The outcome of a game.

    Attributes:
        game: the game.
        threshold: the least score at which the attacker claims canaries: a number of telling tokens, or an
            echo of released texts.
        counts: how often the attacker did.
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

    def noise_at_most(self) -> float:
        """The least noise multiplier that the counts refute, or infinity if they refute none."""
        return noise_at_most(self.game.event, self.game.planned, self.game.claim, self.counts)


@dataclass(frozen=True)
class Stage:
    """One world of a game: with canaries, or without.

    Attributes:
        generation: generates from the world's records.
        label: the demonstrations' label.
        tokens: the number of tokens of a demonstration.
        tick: called after each play.
    """

    generation: Generation
    label: str
    tokens: int
    tick: Callable[[], object]

    def play(self, plays: int, demonstrations: int = 1) -> list[list[str]]:
        """Return the texts of each play."""
        return [[self._text() for _ in range(demonstrations)] for _ in range(plays)]

    def beginning(self) -> list[int]:
        """The first half of a demonstration's tokens; they end nothing."""
        tokens: list[int] = []
        self.generation.release(GenerationRequest(self.label, self.tokens, on_token=tokens.append))
        return tokens[: len(tokens) // 2]

    def _text(self) -> str:
        text = self.generation.release(GenerationRequest(self.label, self.tokens)).text
        self.tick()
        return text


def _telling(texts: Sequence[str]) -> int:
    """The number of marks and hints."""
    return sum(text.count(letter) for text in texts for letter in TELLING)


@dataclass(frozen=True)
class Table:
    """Plays the games.

    Attributes:
        set_up: the user's set-up.
        label: the demonstrations' label.
        plays: the number of plays with canaries, and again without.
        beta: the probability that one bound is wrong.
        tick: called after each play.
    """

    set_up: SetUp
    label: str
    plays: int
    beta: float
    tick: Callable[[], object]

    def one_token(self) -> Outcome | None:
        """Play one token of a draw with all canaries; None if the mechanism has no such release."""
        return self._of_one_draw("one token", 1)

    def one_block(self) -> Outcome | None:
        """Play all tokens of a draw with all canaries; None if there is one token or no such release."""
        tokens = self._stratum.draws.tokens_per_draw
        return self._of_one_draw("one block", tokens) if tokens > 1 else None

    def _of_one_draw(self, name: str, tokens: int) -> Outcome | None:
        """Play some tokens of one draw.

        If a further record adds a row, there are no other records, and noise chooses among many tokens. If it
        changes a row, each canary replaces a decoy, and noise chooses between two tokens.
        """
        stratum = self._stratum
        adds = stratum.draws.row_change is RowChange.ADDED
        draws = replace(stratum.draws, sampling_rate=1.0, steps=1, tokens_per_draw=tokens, fixed_size=None)
        game = self._game(name, draws, tokens, self._candidates if adds else 2)
        try:
            canaries = game.most_canaries(self._one_of(self._candidates if adds and tokens == 1 else _RARE))
        except InvalidPlan:
            return None
        plan = self._with(
            replace(stratum, sampling_rate=Fraction(1), draws=draws),
            replace(
                self.set_up.plan.settings,
                sampling=POISSON,
                disjoint_parts=1,
                holdout=0.0,
                records_per_prompt=1,  # each canary has its own prompt; the noise is as planned
                max_tokens=tokens,
                tokens_per_draw=tokens,
            ),
        )
        without = self._crowd.alone(0 if adds else canaries, decoys=True)
        worlds = without, self._crowd.alone(canaries)
        return self._played(game, canaries, [self._stage(world, plan, game)[0] for world in worlds])

    def one_demonstration(self) -> tuple[Outcome, tuple[Expected, ...]]:
        """Play whole demonstrations from all units of a label, preceded by the canaries.

        Returns:
            The outcome, and how units were drawn.
        """
        stratum, tokens = self._stratum, self.set_up.plan.settings.max_tokens
        draws = replace(stratum.draws, steps=-(-tokens // stratum.draws.tokens_per_draw))
        game = self._game("one demonstration", draws, tokens, self._candidates)
        canaries = game.most_canaries(self._one_of(_RARE), self._room)
        plan = self._with(stratum, replace(self.set_up.plan.settings, disjoint_parts=1, holdout=0.0))
        there = self._crowd.joined_by(canaries, in_place=draws.fixed_size is not None)
        without, _ = self._stage(self._crowd.without(), plan, game)
        present, model = self._stage(there, plan, game)
        outcome = self._played(game, canaries, [without, present])
        return outcome, model.watch.against(stratum.draws, len(there.sizes), self.beta)

    def released_texts(self) -> Outcome:
        """Play all of the label's demonstrations, from the user's model and units, and look at the texts.

        The rehearsal has no canaries: the attacker claims them where a text echoes more than all of it.
        """
        stratum, settings = self._stratum, self.set_up.plan.settings
        shots, tokens = settings.shots_per_label, settings.max_tokens
        draws = replace(stratum.draws, steps=-(-tokens // stratum.draws.tokens_per_draw) * shots)
        game = self._game("released texts", draws, tokens, self._candidates)
        canaries = game.most_canaries(self._one_of(_RARE), self._room)
        plan = self._with(stratum, replace(settings, disjoint_parts=1, holdout=0.0))

        def stage(there: Sequence[Record]) -> Stage:
            return Stage(own_generation(self.set_up, stratum, plan, there), self.label, tokens, self.tick)

        without = stage([])
        canary = EchoCanary.following(without.beginning(), self.set_up, self.label)
        rehearsed = map(canary.echo, without.play(self.plays // 4, shots))
        threshold = math.nextafter(max(rehearsed), math.inf)
        stages = without, stage([canary.record] * canaries)
        echoes = [[canary.echo(texts) for texts in each.play(self.plays, shots)] for each in stages]
        return self._outcome(game, canaries, threshold, echoes)

    @property
    def ticks(self) -> int:
        """The number of plays of all games."""
        games = 2 if self._stratum.draws.tokens_per_draw == 1 else 3
        return 2 * games * self.plays + 2 * (games - 1) * (self.plays // 4)

    @property
    def _stratum(self) -> StratumPlan:
        return self.set_up.plan.stratum_of(self.label)

    @cached_property
    def _crowd(self) -> Crowd:
        return Crowd.of(self.set_up, self._stratum)

    @property
    def _room(self) -> int:
        """The most canaries: where n is fixed, they replace other units."""
        return _MOST_CANARIES if self._stratum.draws.fixed_size is None else len(self._crowd.sizes)

    @property
    def _candidates(self) -> int:
        return min(self.set_up.mechanism.top_k or _CANDIDATES, self.set_up.backend.vocabulary_size)

    def _game(self, name: str, draws: Draws, tokens: int, candidates: int) -> Game:
        return Game(name, self.set_up.mechanism, draws, self._stratum.noise_multiplier, tokens, candidates)

    def _one_of(self, many: int) -> float:
        """The upper bound on the rate of an outcome that happens once in `many` plays."""
        return Rate(self.plays // many, self.plays, self.beta).high

    def _with(self, stratum: StratumPlan, settings: PlanSettings) -> GenerationPlan:
        """The plan with other settings, and with a stratum whose draws last for all plays."""
        plan = self.set_up.plan
        steps = self.ticks * plan.settings.max_tokens * plan.settings.shots_per_label
        lasting = replace(stratum, draws=replace(stratum.draws, steps=steps))
        return replace(
            plan,
            settings=settings,
            strata=tuple(lasting if each is self._stratum else each for each in plan.strata),
        )

    def _stage(self, world: World, plan: GenerationPlan, game: Game) -> tuple[Stage, WorstCaseModel]:
        model = world.model(game.candidates, game.mechanism.top_k)
        generation = world.generation(self.set_up, plan, self.label, model)
        return Stage(generation, self.label, game.tokens, self.tick), model

    def _played(self, game: Game, canaries: int, stages: Sequence[Stage]) -> Outcome:
        def telling(plays: int) -> list[list[int]]:
            return [[_telling(texts) for texts in stage.play(plays)] for stage in stages]

        threshold = 1 if game.tokens == 1 else self._rehearsed(game, canaries, telling(self.plays // 4))
        return self._outcome(game, canaries, threshold, telling(self.plays))

    def _rehearsed(self, game: Game, canaries: int, rehearsed: Sequence[Sequence[int]]) -> int:
        """The threshold that tells the worlds apart best, chosen in separate plays."""
        return min(
            range(1, game.tokens + 1),
            key=lambda threshold: self._outcome(game, canaries, threshold, rehearsed).room,
        )

    def _outcome(
        self, game: Game, canaries: int, threshold: float, scores: Sequence[Sequence[float]]
    ) -> Outcome:
        without, present = (
            Rate(sum(each >= threshold for each in world), len(world), self.beta) for world in scores
        )
        return Outcome(game, threshold, Counts(without, present, canaries))
