"""The plays of the canary game: whole demonstrations of a set-up, from a model that gives canaries away.

Three games. In *one token* the canaries are in the draw for sure, and the mechanism releases a token: that is
where noise that is too small shows best. *One block* is the same with all the tokens that share a draw, where
there are several: that is where noise that does not grow with them shows. In *one demonstration* everything
takes part, from the draws of records to the last token, as often as the plan has it: that is where a fault of
later tokens shows.

Both go the way of `Synthesizer.generate`, from records to the text of a demonstration. Only the records and
the model are others, and in the first two the sampling rate and the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dpfewshot.accounting import Event
from dpfewshot.audit.bounds import Counts, Rate, TradeOff, noise_at_most
from dpfewshot.audit.premises import Expected
from dpfewshot.audit.worlds import Crowd, World
from dpfewshot.audit.worst_case import TELLING, WorstCaseModel
from dpfewshot.errors import InvalidPlan
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.request import GenerationRequest
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms import Draws, Mechanism, RowChange
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from dpfewshot.planning.settings import POISSON, Settings

_CLAIMED = 0.9
"""What a sound release may reach at most: so many canaries that less noise would reach nearly 1."""

_CANDIDATES = 100
_MOST_CANARIES = 200
_RARE = 100  # a false positive in so many plays


@dataclass(frozen=True)
class Game:
    """What is played, and what the plan claims of it.

    Attributes:
        name: of the game.
        mechanism: the one that generates.
        draws: that take part in a play.
        planned: σ of the plan.
        tokens: of a play.
        candidates: how many tokens the public prompt holds possible.
    """

    name: str
    mechanism: Mechanism
    draws: Draws
    planned: float
    tokens: int
    candidates: int

    def event(self, noise_multiplier: float) -> Event:
        """What is played, if it had that much noise."""
        return self.mechanism.event(self.draws, noise_multiplier)

    @cached_property
    def claim(self) -> TradeOff:
        """What the plan claims.

        Raises:
            InvalidPlan: nothing, as the mechanism has no such release.
        """
        return TradeOff(self.event(self.planned))

    def most_canaries(self, by_chance: float, at_most: int = _MOST_CANARIES) -> int:
        """As many as leave the claim below what is reached for sure, at least one.

        Args:
            by_chance: a bound on how often an attacker sees canaries where there are none.
            at_most: there is no room for more.
        """
        reached, canaries = self.claim.most(by_chance, 1), 1
        while canaries < at_most and (further := self.claim.most(reached, 1)) <= _CLAIMED:
            reached, canaries = further, canaries + 1
        return canaries


@dataclass(frozen=True)
class Outcome:
    """How a game ended.

    Attributes:
        game: that was played.
        threshold: from so many telling tokens on, the attacker says that the canaries are there.
        counts: how often it was said.
    """

    game: Game
    threshold: int
    counts: Counts

    @property
    def claimed(self) -> float:
        """How often the attacker may be right about canaries that are there, at most."""
        return self.counts.claimed(self.game.claim)

    @property
    def room(self) -> float:
        """How far the attacker is from what is allowed; negative where the plan is refuted."""
        return self.claimed - self.counts.true_positives.low

    def noise_at_most(self) -> float:
        """The least noise multiplier that the counts refute; infinite where they refute none."""
        return noise_at_most(self.game.event, self.game.planned, self.game.claim, self.counts)


@dataclass(frozen=True)
class Stage:
    """One world of a game.

    Attributes:
        model: that knows its records.
        generation: over them.
        label: of the demonstrations.
        tokens: of a demonstration.
        tick: called after each play.
    """

    model: WorstCaseModel
    generation: Generation
    label: str
    tokens: int
    tick: Callable[[], object]

    def play(self, plays: int) -> list[int]:
        """How many tokens of each demonstration are the mark or a hint."""
        return [self._telling() for _ in range(plays)]

    def _telling(self) -> int:
        text = self.generation.release(GenerationRequest(self.label, self.tokens)).text
        self.tick()
        return sum(text.count(letter) for letter in TELLING)


@dataclass(frozen=True)
class Table:
    """Where the games are played.

    Attributes:
        set_up: the user's.
        label: of the demonstrations.
        plays: with the canaries, and again without.
        beta: the probability that one bound is wrong.
        tick: called after each play.
    """

    set_up: SetUp
    label: str
    plays: int
    beta: float
    tick: Callable[[], object]

    def one_token(self) -> Outcome | None:
        """A token of a draw that holds all canaries; None where the mechanism has no such release."""
        return self._of_one_draw("one token", 1)

    def one_block(self) -> Outcome | None:
        """All tokens of a draw that holds all canaries; None where it serves one, or there is no release."""
        tokens = self._part.draws.tokens_per_draw
        return self._of_one_draw("one block", tokens) if tokens > 1 else None

    def _of_one_draw(self, name: str, tokens: int) -> Outcome | None:
        """Some tokens of one draw.

        Where one record more adds a row, there is nobody else, and many tokens that noise may choose. Where
        it changes one, each canary takes the place of a decoy, and there are two tokens to choose from.
        """
        part = self._part
        adds = part.draws.row_change is RowChange.ADDED
        draws = replace(part.draws, sampling_rate=1.0, steps=1, tokens_per_draw=tokens, fixed_size=None)
        game = self._game(name, draws, tokens, self._candidates if adds else 2)
        try:
            canaries = game.most_canaries(self._one_of(self._candidates if adds and tokens == 1 else _RARE))
        except InvalidPlan:
            return None
        plan = self._with(
            replace(part, sampling_rate=Fraction(1), draws=draws),
            replace(
                self.set_up.plan.settings,
                sampling=POISSON,
                disjoint_parts=1,
                records_per_prompt=1,  # each canary has a prompt, and as much noise as was planned
                max_tokens=tokens,
                resample_every=tokens,
            ),
        )
        without = self._crowd.alone(0 if adds else canaries, decoys=True)
        stages = [self._stage(world, plan, game) for world in (without, self._crowd.alone(canaries))]
        threshold = self._rehearsed(game, canaries, stages)
        return self._outcome(game, canaries, threshold, [stage.play(self.plays) for stage in stages])

    def one_demonstration(self) -> tuple[Outcome, tuple[Expected, ...]]:
        """A whole demonstration from all units of a label, and the canaries before them.

        Returns:
            How it ended, and how units were drawn for it.
        """
        part, tokens = self._part, self.set_up.plan.settings.max_tokens
        draws = replace(part.draws, steps=-(-tokens // part.draws.tokens_per_draw))
        game = self._game("one demonstration", draws, tokens, self._candidates)
        replaced = draws.fixed_size is not None  # n stays what it is: canaries take the place of others
        room = len(self._crowd.sizes) if replaced else _MOST_CANARIES
        canaries = game.most_canaries(self._one_of(_RARE), room)
        plan = self._with(part, replace(self.set_up.plan.settings, disjoint_parts=1))
        there = self._crowd.joined_by(canaries, in_place=replaced)
        stages = [self._stage(world, plan, game) for world in (self._crowd.without(), there)]
        threshold = self._rehearsed(game, canaries, stages)
        outcome = self._outcome(game, canaries, threshold, [stage.play(self.plays) for stage in stages])
        return outcome, stages[1].model.watch.against(part.draws, len(there.sizes), self.beta)

    @property
    def ticks(self) -> int:
        """How many plays all games have."""
        games = 2 if self._part.draws.tokens_per_draw == 1 else 3
        return 2 * games * self.plays + 2 * (games - 1) * (self.plays // 4)

    @property
    def _part(self) -> StratumPlan:
        return self.set_up.plan.stratum_of(self.label)

    @cached_property
    def _crowd(self) -> Crowd:
        return Crowd.of(self.set_up, self._part)

    @property
    def _candidates(self) -> int:
        return min(self.set_up.mechanism.top_k or _CANDIDATES, self.set_up.backend.vocabulary_size)

    def _game(self, name: str, draws: Draws, tokens: int, candidates: int) -> Game:
        return Game(name, self.set_up.mechanism, draws, self._part.noise_multiplier, tokens, candidates)

    def _one_of(self, many: int) -> float:
        """What is known of an outcome that happens in one of so many plays."""
        return Rate(self.plays // many, self.plays, self.beta).high

    def _with(self, part: StratumPlan, settings: Settings) -> GenerationPlan:
        """The plan with other settings, and with another part, which lasts for all plays."""
        plan = self.set_up.plan
        lasting = replace(part, draws=replace(part.draws, steps=self.ticks * plan.settings.max_tokens))
        return replace(
            plan,
            settings=settings,
            strata=tuple(lasting if each is self._part else each for each in plan.strata),
        )

    def _stage(self, world: World, plan: GenerationPlan, game: Game) -> Stage:
        model = world.model(game.candidates, game.mechanism.top_k)
        generation = world.generation(self.set_up, plan, self.label, model)
        return Stage(model, generation, self.label, game.tokens, self.tick)

    def _rehearsed(self, game: Game, canaries: int, stages: Sequence[Stage]) -> int:
        """The number of telling tokens that tells the worlds apart best, from plays that are not counted."""
        if game.tokens == 1:
            return 1
        rehearsed = [stage.play(self.plays // 4) for stage in stages]
        return min(
            range(1, game.tokens + 1),
            key=lambda threshold: self._outcome(game, canaries, threshold, rehearsed).room,
        )

    def _outcome(
        self, game: Game, canaries: int, threshold: int, telling: Sequence[Sequence[int]]
    ) -> Outcome:
        without, present = (
            Rate(sum(each >= threshold for each in world), len(world), self.beta) for world in telling
        )
        return Outcome(game, threshold, Counts(without, present, canaries))
