"""The records of the canary game, and a generation over them like the user's own."""

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
"""Of a canary, where units have several records: one of them is in a draw, or none."""


@dataclass(frozen=True)
class World:
    """Whose records are there.

    Attributes:
        sizes: of each unit, how many records it has.
        named: whether records name their unit.
        canaries: how many units, from the first one on, are canaries.
        decoys: whether these are decoys instead.
    """

    sizes: Sequence[int]
    named: bool
    canaries: int = 0
    decoys: bool = False

    def model(self, candidates: int, top_k: int | None) -> WorstCaseModel:
        """A model that knows these records.

        Args:
            candidates: how many tokens the public prompt holds possible.
            top_k: how many the mechanism takes; None is the whole vocabulary: there is no hint.
        """
        hints = candidates if candidates == top_k else 0
        return WorstCaseModel(candidates, hints, self.canaries, decoys=self.decoys)

    def generation(
        self, set_up: SetUp, plan: GenerationPlan, label: str, model: WorstCaseModel
    ) -> Generation:
        """The set-up over these records. Nothing is charged.

        Args:
            set_up: the user's.
            plan: what is generated.
            label: of all records.
            model: in place of the user's.
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
    """The user's own units of a label, as far as worlds look like them.

    Attributes:
        sizes: of each unit, how many records it has.
        named: whether records name their unit.
    """

    sizes: Sequence[int]
    named: bool

    @classmethod
    def of(cls, set_up: SetUp, part: StratumPlan) -> Crowd:
        """The units that serve a part of the plan, or one of its disjoint parts."""
        sizes = [len(unit) for unit in set_up.units[part.scope]]
        disjoint = set_up.plan.settings.disjoint_parts
        kept = disjoint_parts(len(sizes), disjoint)[0] if disjoint > 1 else range(len(sizes))
        named = any(
            record.unit is not None for units in set_up.units.values() for unit in units for record in unit
        )
        return cls([sizes[unit] for unit in kept], named)

    def alone(self, canaries: int, *, decoys: bool = False) -> World:
        """Canaries and nobody else."""
        return World(self._sizes(canaries), self.named, canaries, decoys)

    def without(self) -> World:
        """Everybody, and no canary."""
        return World(self.sizes, self.named)

    def joined_by(self, canaries: int, *, in_place: bool) -> World:
        """Everybody and the canaries, which may take the place of others."""
        others = self.sizes[canaries:] if in_place else self.sizes
        return World([*self._sizes(canaries), *others], self.named, canaries)

    def _sizes(self, canaries: int) -> list[int]:
        return [_RECORDS if self.named else 1] * canaries
