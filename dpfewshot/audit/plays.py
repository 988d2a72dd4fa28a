"""The plays of the canary game: real draws, real releases, and a model that gives canaries away.

Two games. In *one token* the canaries are in the draw for sure, and the mechanism releases a token: that is
where noise that is too small shows best. In *one demonstration* everything takes part, from the draws of
records to the last token, as often as the plan has it: that is where a fault of later tokens shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dpfewshot.accounting import Event
from dpfewshot.accounting.permit import Permit
from dpfewshot.audit.bounds import Counts, Rate, TradeOff, noise_at_most
from dpfewshot.audit.worst_case import CANARY, DECOY, MARK, OTHER, PROMPTS, WorstCaseModel
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws, Mechanism, RowChange
from dpfewshot.mechanisms.noiseless import started
from dpfewshot.sampling import PoissonSampler, Sampler
from dpfewshot.token_loop import TokenLoop

Units = Sequence[Sequence[list[int]]]

_CLAIMED = 0.9
"""What a sound release may reach at most: so many canaries that less noise would reach nearly 1."""

_MOST_CANARIES = 200
_RARE = 100  # a false positive in so many plays


@dataclass(frozen=True)
class Game:
    """What is played, and what the plan claims of it.

    Attributes:
        name: of the game.
        mechanism: the one that generates.
        draws: that take part.
        planned: σ of the plan.
        sampler: puts units in prompts.
        tokens: of a play.
        candidates: how many tokens the model has.
    """

    name: str
    mechanism: Mechanism
    draws: Draws
    planned: float
    sampler: Sampler
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
        threshold: from so many marks on, the attacker says that the canaries are there.
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
class Table:
    """Where the games are played.

    Attributes:
        mechanism: the one that generates.
        draws: as they were planned.
        noise_multiplier: σ, as planned.
        sampler: the one that generates.
        max_tokens: T of a demonstration.
        candidates: how many tokens the model has.
        plays: with the canaries, and again without.
        beta: the probability that one bound is wrong.
        tick: called after each play.
    """

    mechanism: Mechanism
    draws: Draws
    noise_multiplier: float
    sampler: Sampler
    max_tokens: int
    candidates: int
    plays: int
    beta: float
    tick: Callable[[], object]

    def one_token(self) -> Outcome | None:
        """A token of a draw that holds all canaries; None where the mechanism has no such release.

        Where one record more adds a row, there is nobody else, and many tokens that noise may choose. Where
        it changes one, each canary takes the place of a decoy, and there are two tokens to choose from.
        """
        adds = self.draws.row_change is RowChange.ADDED
        draws = replace(self.draws, sampling_rate=1.0, blocks=1, tokens_per_block=1, fixed_size=None)
        everybody = PoissonSampler(Fraction(1), draws.prompts, 1)
        game = self._game("one token", draws, everybody, 1, self.candidates if adds else 2)
        try:
            canaries = game.most_canaries(self._one_of(self.candidates if adds else _RARE))
        except InvalidPlan:
            return None
        without = [] if adds else [[[DECOY]]] * canaries
        return self._outcome(
            game, canaries, 1, self._marks(game, (without, [[[CANARY]]] * canaries), self.plays)
        )

    def one_demonstration(self, others: Sequence[int]) -> Outcome:
        """A whole demonstration from all units of a label, and the canaries before them.

        Args:
            others: for each unit, how many records it has.
        """
        draws = replace(self.draws, blocks=-(-self.max_tokens // self.draws.tokens_per_block))
        game = self._game("one demonstration", draws, self.sampler, self.max_tokens, self.candidates)
        replaced = draws.fixed_size is not None  # n stays what it is: canaries take the place of others
        canaries = game.most_canaries(self._one_of(_RARE), len(others) if replaced else _MOST_CANARIES)
        without = [[[OTHER]] * records for records in others]
        worlds = without, [[[CANARY]]] * canaries + without[canaries if replaced else 0 :]
        rehearsed = self._marks(game, worlds, self.plays // 4)
        threshold = min(
            range(1, self.max_tokens + 1),
            key=lambda threshold: self._outcome(game, canaries, threshold, rehearsed).room,
        )
        return self._outcome(game, canaries, threshold, self._marks(game, worlds, self.plays))

    @property
    def ticks(self) -> int:
        """How many plays both games have."""
        return 4 * self.plays + 2 * (self.plays // 4)

    def _game(self, name: str, draws: Draws, sampler: Sampler, tokens: int, candidates: int) -> Game:
        return Game(name, self.mechanism, draws, self.noise_multiplier, sampler, tokens, candidates)

    def _one_of(self, many: int) -> float:
        """What is known of an outcome that happens in one of so many plays."""
        return Rate(self.plays // many, self.plays, self.beta).high

    def _marks(self, game: Game, worlds: tuple[Units, Units], plays: int) -> list[list[int]]:
        """How many of the released tokens are the mark, in each play without canaries, and with them."""
        loop = TokenLoop(WorstCaseModel(game.candidates), game.draws.tokens_per_block)
        return [[self._play(loop, game, units) for _ in range(plays)] for units in worlds]

    def _play(self, loop: TokenLoop, game: Game, units: Units) -> int:
        released = loop.release(
            units,
            game.sampler,
            started(game.mechanism, game.draws, game.planned, None),
            lambda: Permit(game.draws.tokens_per_block, game.planned),  # nothing is released
            prompts=PROMPTS,
            max_tokens=game.tokens,
        )
        self.tick()
        return released.count(MARK)

    def _outcome(self, game: Game, canaries: int, threshold: int, marks: Sequence[Sequence[int]]) -> Outcome:
        without, present = (
            Rate(sum(each >= threshold for each in world), len(world), self.beta) for world in marks
        )
        return Outcome(game, threshold, Counts(without, present, canaries))
