"""Baselines for demonstrations under (ε, δ): ε = 0, and no privacy at all.

Tang et al. (ICLR 2024) compare with both: demonstrations generated from the instruction alone (their
"instruction-only"), and unchanged records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, product

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend, Logprobs
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.generation.units import check_records, planned_labels
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.mechanisms.decoding import Decoding
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.records import as_records
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.sampling import FixedSizeSampler
from dpfewshot.tasks import Task
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.values import Demonstration, Record, Relation, by_label, check_whole
from dpfewshot.writing.draft import Draft, ShapedDraft
from dpfewshot.writing.public_loop import PublicLoop


def instruction_only_demonstrations(
    task: Task,
    backend: LogprobBackend,
    labels: Sequence[str] | None = None,
    *,
    shots: int = 1,
    max_tokens: int = 40,
    top_k: int | None = 100,
    temperature: float | None = None,
    random_source: RandomSource | None = None,
) -> Demonstrations:
    """Generate demonstrations from the instruction alone: no record is read, so ε = 0 and they are certified.

    One demonstration of each label comes first, then the next of each.

    Args:
        task: instruction, fields and labels.
        backend: any language model. It need not be trusted, nor state batch invariance.
        labels: the labels to generate, public input; by default the task's. Required if its labels are free.
        shots: demonstrations of each label, at least 1.
        max_tokens: tokens of a demonstration at most.
        top_k: number of candidate tokens, the likeliest ones; None, or more than there are, takes all.
        temperature: 0 takes the likeliest token. By default 0 for one shot, and 1 for several, whose texts
            would otherwise be equal.
        random_source: n to n uniform bytes, for tests alone. Results are private all the same.

    Raises:
        InvalidPlan: a setting is outside its range, there is no label, or no text of `max_tokens` tokens
            matches the task's schema.
        InvalidTask: the task does not have one of the labels.
        BackendError: the model or its server failed.
    """
    check_whole("shots", shots)
    check_whole("max_tokens", max_tokens)
    if top_k is not None:
        check_whole("top_k", top_k)
    decoding = Decoding(temperature=(0.0 if shots == 1 else 1.0) if temperature is None else temperature)
    planned = planned_labels(task, labels)
    writer = PromptWriter(task, backend, record_token_cap=1)
    loop = PublicLoop(backend, task.layout)
    if loop.automaton is not None:
        loop.automaton.check(max_tokens)
    ruled = loop.automaton is not None or loop.layout.no_repeat_ngram_size

    def choose(draft: Draft | ShapedDraft, logprobs: Logprobs, left: int) -> int:
        support = draft.support(partial(likeliest, top_k=top_k), logprobs, left)
        scores = logprobs[support].astype(np.float64)
        known = np.isfinite(scores)
        if not known.any():
            if not (ruled and np.isfinite(logprobs).any()):
                raise BackendError(
                    "the backend gives no token of a public prompt any probability: "
                    "check whether the prompt is longer than the backend's context"
                )
            known, scores = ~known, np.zeros_like(scores)  # the task allows unlikely tokens alone
        weights = np.exp(np.where(known, scores - scores[known].max(), -np.inf))
        return support[decoding.choose(weights, random_source)]

    made = []
    for number, label in product(range(shots), planned):
        prompts = writer.for_label(label, number)
        _, released = loop.continued(prompts, [], max_tokens, choose)
        made.append(loop.at_no_cost(label, prompts, released, Relation.ADD_REMOVE))
    return Demonstrations(made)


@redacts_errors(None)
def non_private_sample(
    task: Task,
    records: Iterable[Record] | object,
    labels: Sequence[str] | None = None,
    *,
    shots: int = 1,
    random_source: RandomSource | None = None,
) -> Demonstrations:
    """Sample unchanged records, without any privacy: for experiments on data that may be published.

    One record of each label comes first, then the next of each. `token_count` is 0: no token was generated.

    Args:
        task: fields and labels.
        records: `Record` objects, mappings, a DataFrame or a Dataset.
        labels: the labels to draw; by default the task's. Required if its labels are free.
        shots: records of each label, at least 1, drawn uniformly without replacement.
        random_source: n to n uniform bytes, for tests alone.

    Raises:
        InvalidPlan: a setting is outside its range, there is no label, or one has fewer records than shots.
        InvalidRecords: a record cannot be used, or the task does not have its label.
        InvalidTask: the task does not have one of the labels.
    """
    check_whole("shots", shots)
    checked = as_records(records)
    planned = planned_labels(task, labels)
    check_records(task, checked)
    of_label = by_label(checked)
    drawn = [without_replacement(of_label.get(label, []), shots, random_source) for label in planned]
    in_turn = chain.from_iterable(zip(*drawn, strict=True))
    return Demonstrations(verbatim(record, task.layout) for record in in_turn)


def verbatim(record: Record, layout: TextLayout | None = None) -> Demonstration:
    """A record as a demonstration, without any privacy; with a task's layout, its fields too."""
    return Demonstration(
        text=record.text,
        label=record.label,
        token_count=0,
        certified=False,
        spent=None,
        relation=Relation.ADD_REMOVE,
        mechanism="non-private-sample",
        fields=layout.fields_of(record.text) if layout else {},
    )


def without_replacement(
    records: Sequence[Record], count: int, random_source: RandomSource | None = None
) -> list[Record]:
    """Draw records uniformly without replacement, or raise `InvalidPlan` if there are too few."""
    if len(records) < count:
        raise InvalidPlan("a label has fewer records than shots")
    [drawn] = FixedSizeSampler(1, count, random_source).draw([1] * len(records))
    return [records[place] for place, _ in drawn]
