"""The conditions of an evaluation: a mechanism's demonstrations, or one of the papers' baselines.

Tang et al. (ICLR 2024) compare with no demonstrations, with instruction-only ones (ε = 0), with the mechanism
without noise (σ = 0), and with a non-private sample of the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dpfewshot import baselines
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.mechanisms import Mechanism
from dpfewshot.planning.settings import Settings
from dpfewshot.records.units import units, units_by_label
from dpfewshot.synthesizer import Synthesizer
from dpfewshot.tasks import Task
from dpfewshot.values import NO_PRIVACY, Demonstration, PrivacyBudget, Record, by_label

INSTRUCTION_ONLY, NON_PRIVATE_SAMPLE = "instruction-only", "non-private sample"
"""The names of two baselines in results."""


def populations(task: Task, records: Sequence[Record]) -> dict[str, int]:
    """Return the public number of units of each label, or of "" if labels are free."""
    if task.labels is None:
        return {"": len(units(records))}
    return {label: len(part) for label, part in units_by_label(records).items()}


@dataclass(frozen=True)
class Request:
    """A request for demonstrations.

    Attributes:
        labels: the public label of each demonstration, in order. Repeat a label to request several.
        epsilon, delta: of all demonstrations together; without privacy, ε is None.
        repetition: from 0.
    """

    task: Task
    records: Sequence[Record] = field(repr=False)
    backend: LogprobBackend
    labels: tuple[str, ...]
    epsilon: float | None
    delta: float
    repetition: int = 0

    @property
    def shots_per_label(self) -> int:
        """The largest number of demonstrations of a label."""
        return max(Counter(self.labels).values())

    def in_order(self, made: Iterable[Demonstration]) -> Demonstrations:
        """Select the requested demonstrations in the order of `labels`."""
        left = by_label(made)
        return Demonstrations([left[label].pop(0) for label in self.labels])


class Condition(Protocol):
    """A source of demonstrations."""

    @property
    def name(self) -> str:
        """Its name in results."""

    def demonstrations(self, request: Request) -> Demonstrations:
        """Return the requested demonstrations in order."""


@dataclass(frozen=True)
class ZeroShot:
    """No demonstrations: only the instruction and the text."""

    name: str = "zero-shot"

    def demonstrations(self, request: Request) -> Demonstrations:
        """Return no demonstrations."""
        del request
        return Demonstrations()


@dataclass(frozen=True)
class InstructionOnly:
    """What the model writes from the instruction alone (ε = 0)."""

    max_tokens: int = 40
    name: str = INSTRUCTION_ONLY

    def demonstrations(self, request: Request) -> Demonstrations:
        """Return the requested demonstrations."""
        made = baselines.instruction_only_demonstrations(
            request.task,
            request.backend,
            sorted(set(request.labels)),
            shots=request.shots_per_label,
            max_tokens=self.max_tokens,
            temperature=1.0,
        )
        return request.in_order(made)


@dataclass(frozen=True)
class NonPrivateSample:
    """Private records verbatim, without any privacy. If labels are free, they keep their own."""

    name: str = NON_PRIVATE_SAMPLE

    def demonstrations(self, request: Request) -> Demonstrations:
        """Return the requested demonstrations."""
        if request.task.labels is not None:
            labels, shots = sorted(set(request.labels)), request.shots_per_label
            drawn = baselines.non_private_sample(request.task, request.records, labels, shots=shots)
            return request.in_order(drawn)
        picked = baselines.without_replacement(request.records, len(request.labels))
        return Demonstrations(baselines.verbatim(record, request.task.layout) for record in picked)


@dataclass(frozen=True)
class Synthetic:
    """What a `Synthesizer` releases; without a budget, that is without noise (σ = 0).

    Args:
        prompts_per_draw: M, reduced to what the smallest label's number of units allows; None: the planner
            decides.
        records_per_prompt: N. Any value asks for prompts of records; None leaves that to the planner.
        mechanism: None: the planner decides.
        tokens_per_draw: R, the number of tokens that share a draw of records; None is all, or what the
            planner decides where it decides M.
        allow_batch_variance: whether to accept a backend that is not batch-invariant; the demonstrations are
            then not certified. Not part of the condition's description.
    """

    name: str
    mechanism: Mechanism | None
    prompts_per_draw: int | None = 20
    records_per_prompt: int | None = None
    max_tokens: int = 40
    tokens_per_draw: int | None = None
    allow_batch_variance: bool = field(default=True, repr=False)

    def demonstrations(self, request: Request) -> Demonstrations:
        """Return the requested demonstrations, together under (ε, δ)."""
        with self.synthesizer(request) as synthesizer:
            made = [
                synthesizer.generate(label)
                for _ in range(request.shots_per_label)
                for label in sorted(set(request.labels))
            ]
        return request.in_order(made)

    def synthesizer(self, request: Request) -> Synthesizer:
        """Return the synthesizer that generates them."""
        prompts, tokens = self.prompts_per_draw, self.tokens_per_draw
        if prompts is not None:
            tokens = tokens or self.max_tokens
            sizes = populations(request.task, request.records)
            asked = request.labels if request.task.labels is not None else ("",)
            smallest = min(sizes.get(label, 0) for label in asked)  # public, as in plans
            prompts = max(1, min(prompts, smallest // (self.records_per_prompt or 1)))
        budget = NO_PRIVACY if request.epsilon is None else PrivacyBudget(request.epsilon, request.delta)
        return Synthesizer(
            request.task,
            request.records,
            request.backend,
            budget=budget,
            mechanism=self.mechanism,
            max_tokens=self.max_tokens,
            shots_per_label=request.shots_per_label,
            labels=sorted(set(request.labels)),
            settings=Settings(
                prompts_per_draw=prompts,
                records_per_prompt=self.records_per_prompt,
                tokens_per_draw=tokens,
                allow_batch_variance=self.allow_batch_variance,
            ),
        )
