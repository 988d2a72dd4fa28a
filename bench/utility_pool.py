"""The candidates among which `bench/utility_choice.py` chooses: demonstrations by task and repetition, kept in a folder.

A fifth of the training records is held out: the other records write demonstrations, the fifth chooses among them. So
choosing costs no ε beyond that of writing (parallel composition), and both have the whole ε.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dpfewshot as dpf
from bench.utility import DELTA, ours
from bench.utility_data import DataSet
from bench.utility_settings import WithExamples
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.evaluation import Condition, InstructionOnly, NonPrivateSample, Request

EPSILON = 1.0
HELD_OUT = 0.2
SHOTS = 4
"""The demonstrations of a small set: the first of the large set, which the plan pays for whole."""

MOST_REPETITIONS = 5

LARGE = {"trec": 12, "jargon-told": 10}
"""The demonstrations of a large set: every label twice, or eight where labels are many or free."""

NONE = "none"
"""The candidate without demonstrations."""


@dataclass(frozen=True)
class Source:
    """Where a candidate's demonstrations come from.

    Attributes:
        name: in files and results.
        epsilon: the budget's ε of the large set; 0 reads no record, None is without privacy.
        chosen_among: whether the candidate may be chosen, and so is scored on held-out records.
    """

    name: str
    epsilon: float | None
    chosen_among: bool = True

    def condition(self, data: DataSet) -> Condition:
        """What writes the demonstrations."""
        if self.name == "real":
            return NonPrivateSample()
        if self.name != "instruction":
            return ours(data)
        plain = InstructionOnly(data.our_tokens or data.max_tokens)
        return WithExamples(plain, data.examples) if data.shows_examples else plain


OURS = Source("ours", EPSILON)
INSTRUCTION = Source("instruction", 0.0)
REAL = Source("real", None, chosen_among=False)
NOISELESS = Source("noiseless", None, chosen_among=False)
SOURCES = (INSTRUCTION, OURS, REAL, NOISELESS)


@dataclass(frozen=True)
class Candidate:
    """A prompt: the first `shots` demonstrations of a source's set."""

    source: Source | None
    repetition: int
    shots: int

    @property
    def name(self) -> str:
        """Its name in files."""
        return NONE if self.source is None else f"{self.source.name}-{self.shots}-r{self.repetition}"


WITHOUT = Candidate(None, 0, 0)


def large(data: DataSet) -> int:
    """The number of demonstrations of a large set."""
    return LARGE.get(data.task.name, 8)


def pool(data: DataSet, repetition: int) -> list[Candidate]:
    """The prompts to choose from."""
    return [
        WITHOUT,
        Candidate(INSTRUCTION, repetition, SHOTS),
        Candidate(OURS, repetition, SHOTS),
        Candidate(OURS, repetition, large(data)),
    ]


def free(repetition: int) -> list[Candidate]:
    """Other repetitions' instruction-only prompts, which cost no ε: candidates too, once they have been scored."""
    return [Candidate(INSTRUCTION, other, SHOTS) for other in range(MOST_REPETITIONS) if other != repetition]


def compared(repetition: int) -> list[Candidate]:
    """The prompts beside the pool: real records, and ours without noise."""
    return [Candidate(source, repetition, SHOTS) for source in (REAL, NOISELESS)]


def held_out(records: Sequence[dpf.Record]) -> tuple[list[dpf.Record], list[dpf.Record]]:
    """The records that write, and those that choose: each by itself, by a hash of its text."""
    writes: list[dpf.Record] = []
    chooses: list[dpf.Record] = []
    for record in records:
        place = int.from_bytes(hashlib.sha256(record.text.encode()).digest()[:4], "big")
        (chooses if place < HELD_OUT * 2**32 else writes).append(record)
    return writes, chooses


def labels_of(data: DataSet, repetition: int, shots: int) -> tuple[str, ...]:
    """The labels of a repetition in order, as `Experiment.labels_of` has them."""

    def place(label: str) -> bytes:
        return hashlib.sha256(f"{repetition}\n{label}".encode()).digest()

    order = sorted(data.labels or data.task.labels or (), key=place)
    return tuple(order[shot % len(order)] for shot in range(shots))


@dataclass(frozen=True)
class Writer:
    """Writes sets of demonstrations, and keeps them in a folder."""

    backend: LogprobBackend
    name: str
    folder: Path

    def demonstrations(
        self, data: DataSet, records: Sequence[dpf.Record], candidate: Candidate
    ) -> Demonstrations:
        """A candidate's demonstrations, written now or earlier."""
        if candidate.source is None:
            return Demonstrations()
        shots = candidate.shots if not candidate.source.chosen_among else large(data)
        path = self.folder / f"{data.task.name}_{candidate.source.name}_{shots}_r{candidate.repetition}.jsonl"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._written(data, records, candidate, shots).to_jsonl(path)
        return Demonstrations(list(Demonstrations.from_jsonl(path))[: candidate.shots])

    def _written(
        self, data: DataSet, records: Sequence[dpf.Record], candidate: Candidate, shots: int
    ) -> Demonstrations:
        source = candidate.source
        assert source is not None  # noqa: S101 - the caller looked
        request = Request(
            task=data.task,
            records=records,
            backend=self.backend,
            labels=labels_of(data, candidate.repetition, shots),
            epsilon=source.epsilon,
            delta=DELTA,
            repetition=candidate.repetition,
        )
        return source.condition(data).demonstrations(request)
