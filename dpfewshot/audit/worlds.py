"""The canary game's records, and a generation over them like the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpfewshot.audit.worst_case import WorstCaseModel, text_of_unit
from dpfewshot.generation.experiments import unaccounted
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.set_up import SetUp
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from dpfewshot.sampling import disjoint_parts
from dpfewshot.values import Record

_RECORDS = 3
"""Records of a canary if units may have several; a draw holds at most one of them."""


@dataclass(frozen=True)
class World:
    """A set of units.

    Attributes:
        sizes: the number of records of each unit.
        named: whether records name their unit.
        canaries: the number of canaries; they are the first units.
        decoys: whether these units are decoys instead.
    """

    sizes: Sequence[int]
    named: bool
    canaries: int = 0
    decoys: bool = False

    def model(self, candidates: int, top_k: int | None) -> WorstCaseModel:
        """Return a model that knows these records.

        Args:
            candidates: the number of tokens that the public prompt considers possible.
            top_k: the number of candidates of the mechanism; None, the whole vocabulary, leaves no hints.
        """
        hints = candidates if candidates == top_k else 0
        return WorstCaseModel(candidates, hints, self.canaries, decoys=self.decoys)

    def generation(
        self, set_up: SetUp, plan: GenerationPlan, label: str, model: WorstCaseModel
    ) -> Generation:
        """Return an uncharged generation over these records.

        Args:
            set_up: the user's set-up.
            plan: what to generate.
            label: the label of all records.
            model: replaces the user's model.
        """
        return unaccounted(set_up.over(self._records(label), model, plan))

    def _records(self, label: str) -> list[Record]:
        return [
            Record(text_of_unit(unit), label, text_of_unit(unit) if self.named else None)
            for unit, size in enumerate(self.sizes)
            for _ in range(size)
        ]


@dataclass(frozen=True)
class Crowd:
    """The properties of the user's units that the worlds copy.

    Attributes:
        sizes: the number of records of each unit.
        named: whether records name their unit.
    """

    sizes: Sequence[int]
    named: bool

    @classmethod
    def of(cls, set_up: SetUp, stratum: StratumPlan) -> Crowd:
        """The units of a stratum that generate, or those of the first of its disjoint parts."""
        sizes = set_up.generating(stratum).sizes.tolist()
        disjoint = set_up.plan.settings.disjoint_parts
        kept = disjoint_parts(len(sizes), disjoint)[0] if disjoint > 1 else range(len(sizes))
        named = any(units.named for units in set_up.units.values())
        return cls([sizes[unit] for unit in kept], named)

    def alone(self, canaries: int, *, decoys: bool = False) -> World:
        """Only canaries."""
        return World(self._sizes(canaries), self.named, canaries, decoys)

    def without(self) -> World:
        """All units, without canaries."""
        return World(self.sizes, self.named)

    def joined_by(self, canaries: int, *, in_place: bool) -> World:
        """All units and the canaries, which may replace units."""
        others = self.sizes[canaries:] if in_place else self.sizes
        return World([*self._sizes(canaries), *others], self.named, canaries)

    def _sizes(self, canaries: int) -> list[int]:
        return [_RECORDS if self.named else 1] * canaries
