"""What demonstrations under (ε, δ) are measured against: ε = 0, and no privacy at all.

Tang et al. (ICLR 2024) compare with both: few-shot demonstrations that are generated from the instruction
alone, and records as they stand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing

import numpy as np

from dpfewshot.backends.end_tokens import ending_tokens, text_of
from dpfewshot.backends.protocol import LogprobBackend, PromptBlock, open_block
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.exact.choice import uniform_below
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.generation.strata import divide
from dpfewshot.mechanisms.decoding import Decoding
from dpfewshot.mechanisms.vocabulary import likeliest
from dpfewshot.prompts.writer import LabelPrompts, PromptWriter
from dpfewshot.records import as_records
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacySpend, Record, Relation

_STEPS_OF_LIKELIEST = 2**40


def zero_private_demonstrations(
    task: Task,
    backend: LogprobBackend,
    labels: Sequence[str] | None = None,
    *,
    shots: int = 1,
    max_tokens: int = 40,
    top_k: int | None = 100,
    temperature: float | None = None,
    random_source: RandomSource | None = None,
) -> list[Demonstration]:
    """Demonstrations from the instruction alone, token by token: no record is read, so ε = 0.

    Args:
        task: instruction, fields and labels.
        backend: any language model. It need not be trusted, nor state batch invariance.
        labels: the labels to generate, public input; the task's own by default. Tasks with free labels
            need it.
        shots: demonstrations of each label, at least 1.
        max_tokens: tokens of a demonstration at most.
        top_k: how many of the likeliest tokens are candidates; None, or more than there are, is all.
        temperature: 0 takes the likeliest token. By default 0 for one shot, and 1 for several, which would
            be the same text else.
        random_source: n to n uniform bytes, for tests alone. What comes out is private all the same.

    Returns:
        Every label once, then every label again. `spent` is (0, 0), and `private` is true.

    Raises:
        InvalidPlan: a setting outside its range, or no label.
        InvalidTask: a label that the task does not have.
        BackendError: the model or its server failed.
    """
    _check_whole(shots=shots, max_tokens=max_tokens)
    if top_k is not None:
        _check_whole(top_k=top_k)
    decoding = Decoding(temperature=(0.0 if shots == 1 else 1.0) if temperature is None else temperature)
    planned = _labels(task, (), labels)
    writer = PromptWriter(task, backend, record_token_cap=1)
    continuation = _Continuation(backend, max_tokens, top_k, decoding, random_source)
    return [continuation.of(label, writer.for_label(label)) for _ in range(shots) for label in planned]


@redacts_errors(None)
def random_private_demonstrations(
    task: Task,
    records: Iterable[Record] | object,
    labels: Sequence[str] | None = None,
    *,
    shots: int = 1,
    random_source: RandomSource | None = None,
) -> list[Demonstration]:
    """Records as they stand, without any privacy: for experiments on data that may be published.

    Args:
        task: fields and labels.
        records: `Record` objects, mappings, a DataFrame or a Dataset.
        labels: the labels to draw for; the task's own by default. Tasks with free labels need it.
        shots: records of each label, at least 1, drawn uniformly without replacement.
        random_source: n to n uniform bytes, for tests alone; None is the operating system's generator.

    Returns:
        Every label once, then every label again. `private` is false and `spent` None. `token_count` is 0:
        no token was generated.

    Raises:
        InvalidPlan: a setting outside its range, no label, or one with fewer records than shots.
        InvalidRecords: a record cannot be used, or its label is not the task's.
        InvalidTask: a label that the task does not have.
    """
    _check_whole(shots=shots)
    checked = as_records(records)
    planned = _labels(task, checked, labels)
    drawn = {
        label: _draw([record for record in checked if record.label == label], shots, random_source)
        for label in planned
    }
    return [
        Demonstration(
            text=drawn[label][shot].text,
            label=label,
            token_count=0,
            private=False,
            spent=None,
            relation=Relation.ADD_REMOVE,
            mechanism="random-private",
        )
        for shot in range(shots)
        for label in planned
    ]


class _Continuation:
    """How the model writes on after a public prompt, for one backend."""

    def __init__(
        self,
        backend: LogprobBackend,
        max_tokens: int,
        top_k: int | None,
        decoding: Decoding,
        random_source: RandomSource | None,
    ) -> None:
        self._backend = backend
        self._max_tokens = max_tokens
        self._top_k = top_k
        self._decoding = decoding
        self._random_source = random_source
        self._ends = ending_tokens(backend)

    def of(self, label: str, prompts: LabelPrompts) -> Demonstration:
        """One demonstration."""
        written = self._tokens(prompts)
        return Demonstration(
            text=text_of(self._backend, written, self._ends),
            label=label,
            token_count=len(written),
            private=True,
            spent=PrivacySpend(0.0, 0.0),
            relation=Relation.ADD_REMOVE,
            mechanism="zero-private",
        )

    def _tokens(self, prompts: LabelPrompts) -> list[int]:
        """At most `max_tokens`; the last one may be the one that ends it, the first one never is."""
        written: list[int] = []
        suffixes = [prompts.public_suffix]
        with closing(
            open_block(self._backend, prompts.prefix, suffixes, self._max_tokens, public=True)
        ) as block:
            while len(written) < self._max_tokens:
                written.append(self._next(block, frozenset() if written else self._ends))
                if written[-1] in self._ends:
                    break
                block.append(written[-1])
        return written

    def _next(self, block: PromptBlock, excluded: frozenset[int]) -> int:
        logprobs = np.asarray(block.next_token_logprobs(), dtype=np.float32)
        if logprobs.ndim != 2 or len(logprobs) != 1:  # noqa: PLR2004 - one row of V
            raise BackendError("the backend answered with an array of another shape than was asked for")
        support = likeliest(logprobs[0], excluded, self._top_k)
        scores = logprobs[0, support].astype(np.float64)
        told = np.isfinite(scores)
        if not told.any():
            raise BackendError(
                "the backend gives no probability to any token of a prompt without records: "
                "see whether it is longer than the backend's context"
            )
        weights = np.exp(np.where(told, scores - scores[told].max(), -np.inf))
        steps = np.rint(weights * _STEPS_OF_LIKELIEST).astype(np.int64)
        return support[self._decoding.choose(steps, self._random_source)]


def _labels(task: Task, records: Sequence[Record], labels: Sequence[str] | None) -> list[str]:
    return [label for share in divide(task, records, labels) for label in share.labels]


def _draw(records: list[Record], count: int, random_source: RandomSource | None) -> list[Record]:
    """So many of the records, uniformly without replacement."""
    if len(records) < count:
        raise InvalidPlan("a label has fewer records than shots")
    read = random_source or os.urandom
    left = list(records)
    return [left.pop(uniform_below(len(left), read)) for _ in range(count)]


def _check_whole(**settings: object) -> None:
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidPlan(f"{name} must be a whole number of at least 1, not {value!r}")
