"""Membership inference against a 1-shot prompt: the LOSS attack (Tang et al., Appendix F; Duan et al. 2023).

A prompt holds one demonstration. The attacker has candidate records, asks the prompted model about each, and
takes for a member what it is least surprised by: the score is minus the loss, the negative log-likelihood of
the candidate's label, or of the whole candidate. Members are the record that stands in the prompt itself, or
those that a synthetic demonstration was made from. All candidates of a trial have the demonstration's label:
otherwise an attacker who merely saw which label the prompt shows would pass for one who knows its record.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import numpy as np

from dpfewshot.audit.findings import Figure, Finding
from dpfewshot.audit.roc import average_area, largest_area, roc_area
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.icl import Classifier
from dpfewshot.icl.few_shot import FewShotPrompt, no_answer
from dpfewshot.prompts.few_shot import PromptFormat, prompt_format
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacySpend, Record, Relation

Loss = Literal["label", "record"]

_Labelled = TypeVar("_Labelled", Demonstration, Record)


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt and the candidates that the attacker asks it about. Its repr shows nothing of them.

    Attributes:
        demonstration: what stands in the prompt.
        members: records that it was made from, or that it is.
        non_members: records that it has nothing to do with, drawn like the members.
    """

    demonstration: Demonstration = field(repr=False)
    members: tuple[Record, ...] = field(repr=False)
    non_members: tuple[Record, ...] = field(repr=False)


_TOGETHER = 30
"""Candidates whose tokens are asked for together: two groups of streams that step as one."""


def trials_of_demonstrations(
    demonstrations: Iterable[Demonstration], members: Iterable[Record], non_members: Iterable[Record]
) -> list[Trial]:
    """One trial a demonstration, with a share of the candidates of its label that no other trial has.

    Args:
        demonstrations: synthetic ones.
        members: records that they were made from.
        non_members: records that they were not made from. A fair draw should have told them from the members.

    Raises:
        InvalidPlan: a label has fewer members, or fewer non-members, than demonstrations.
    """
    shown = _by_label(demonstrations)
    inside, outside = _by_label(members), _by_label(non_members)
    for label, ones in shown.items():
        if min(len(inside[label]), len(outside[label])) < len(ones):
            raise InvalidPlan("every demonstration needs a member and a non-member of its label for itself")
    return [
        Trial(one, tuple(inside[label][place :: len(ones)]), tuple(outside[label][place :: len(ones)]))
        for label, ones in shown.items()
        for place, one in enumerate(ones)
    ]


def trials_of_records(
    records: Iterable[Record], non_members: Iterable[Record], *, each: int = 5
) -> list[Trial]:
    """One trial a record, which stands in the prompt as it is: what synthetic demonstrations are to prevent.

    Args:
        records: each is the only member of its trial.
        non_members: other records; those of a label serve its trials in turn.
        each: how many non-members a trial has.

    Raises:
        InvalidPlan: a label has fewer non-members than `each`.
    """
    inside, outside = _by_label(records), _by_label(non_members)
    if any(len(outside[label]) < each for label in inside):
        raise InvalidPlan(f"every label needs at least {each} non-members")
    turns = {label: itertools.cycle(ones) for label, ones in outside.items()}
    return [
        Trial(_verbatim(record), (record,), tuple(itertools.islice(turns[label], each)))
        for label, ones in inside.items()
        for record in ones
    ]


@redacts_errors(BackendError, "membership inference")
def membership_inference(
    task: Task | PromptFormat, backend: LogprobBackend, trials: Sequence[Trial], *, loss: Loss = "label"
) -> Finding:
    """The attack's area under the ROC curve, averaged over trials, with a 95 % interval.

    Args:
        task: a task, or the prompt's format.
        backend: any language model: it stands for the one that the attacker asks. It reads the candidates.
        trials: independent ones, at least two.
        loss: "label", of the candidate's label after its text, as in the papers: among the labels, where the
            task has them; or "record", of the candidate's text and label after the prompt, which is what an
            attacker can ask who is given the likelihood of a whole text.

    Returns:
        A private finding. Where all demonstrations are differentially private, the area is held against the
        largest that their ε and δ allow, and the finding failed if the whole interval is above it.

    Raises:
        InvalidPlan: fewer than two trials, one without members or non-members, or another loss.
        InvalidTask: a label that the task does not have.
        BackendError: the model failed, or has no answer for a candidate.
    """
    if loss not in get_args(Loss):
        raise InvalidPlan(f"loss must be one of {', '.join(get_args(Loss))}, not {loss!r}")
    words = task if isinstance(task, PromptFormat) else prompt_format(task)
    area = average_area([_area_of_trial(words, backend, trial, loss) for trial in trials])
    spent = _largest_spend(trials)
    reference = largest_area(spent.epsilon, spent.delta) if spent else None
    held = "guessing is 0.5" if reference is None else f"their privacy allows {reference:.3f}"
    return Finding(
        kind="membership",
        title=f"Membership inference, 1-shot, {loss} loss",
        statement=(
            f"In {len(trials)} trials a member was told from a non-member with AUC {area.value:.3f} "
            f"({area.low:.3f} to {area.high:.3f}); {held}."
        ),
        verdict="informative" if reference is None else "failed" if area.low > reference else "passed",
        confidential=True,
        figures=(Figure("AUC", area.value, low=area.low, high=area.high, reference=reference),),
        details={
            "loss": loss,
            "trials": len(trials),
            "members": sum(len(trial.members) for trial in trials),
            "non_members": sum(len(trial.non_members) for trial in trials),
            "epsilon": spent.epsilon if spent else None,
            "delta": spent.delta if spent else None,
        },
    )


def _area_of_trial(words: PromptFormat, backend: LogprobBackend, trial: Trial, loss: Loss) -> float:
    of_labels = _label_losses if words.labels is not None else _free_label_losses
    losses = of_labels if loss == "label" else _record_losses
    candidates = [*trial.members, *trial.non_members]
    scores = [-value for value in losses(words, backend, trial.demonstration, candidates)]
    return roc_area(scores[: len(trial.members)], scores[len(trial.members) :])


def _label_losses(
    words: PromptFormat, backend: LogprobBackend, shown: Demonstration, candidates: Sequence[Record]
) -> list[float]:
    """-log p(label) among the labels, without calibration, which an attacker can undo."""
    columns = [words.words.index(words.word(record.label)) for record in candidates]
    classifier = Classifier(words, backend, [shown], calibrated=False)
    probabilities = classifier.predict_proba([record.text for record in candidates])
    with np.errstate(divide="ignore"):
        losses: list[float] = (-np.log(probabilities[range(len(columns)), columns])).tolist()
    return losses


def _free_label_losses(
    words: PromptFormat, backend: LogprobBackend, shown: Demonstration, candidates: Sequence[Record]
) -> list[float]:
    prompt = FewShotPrompt(words, backend, [shown])
    given = [prompt.question(one.text) for one in candidates]
    labels = [prompt.label(words.word(one.label)) for one in candidates]
    return _negative_log_likelihoods(prompt, given, labels)


def _record_losses(
    words: PromptFormat, backend: LogprobBackend, shown: Demonstration, candidates: Sequence[Record]
) -> list[float]:
    prompt = FewShotPrompt(words, backend, [shown])
    written = [[*prompt.question(one.text), *prompt.label(words.word(one.label))] for one in candidates]
    return _negative_log_likelihoods(prompt, [[] for _ in written], written)


def _negative_log_likelihoods(
    prompt: FewShotPrompt, given: Sequence[list[int]], written: Sequence[list[int]]
) -> list[float]:
    """-log p(tokens | prefix and what is given) of each candidate, in nats, one token after the other."""
    _check_room(prompt, given, written)
    losses: list[float] = []
    for start in range(0, len(written), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        losses += _summed(prompt, given[some], written[some])
    if np.isnan(losses).any():
        raise no_answer(int(np.isnan(losses).argmax()))
    return losses


def _check_room(prompt: FewShotPrompt, given: Sequence[list[int]], written: Sequence[list[int]]) -> None:
    """Refuse candidates too long to be asked about together: a backend would say how long, or blame others.

    Raises:
        BackendError: names the position of the longest.
    """
    context = getattr(prompt.backend, "context_tokens", None)
    together = len(prompt.prefix) + max(map(len, given)) + max(map(len, written))
    if context is not None and together >= context:  # a token in front may come on top
        raise no_answer(max(range(len(written)), key=lambda place: len(given[place]) + len(written[place])))


def _summed(prompt: FewShotPrompt, given: Sequence[list[int]], written: Sequence[list[int]]) -> list[float]:
    """Of some candidates, whose tokens are asked for together; one that has ended repeats its last."""
    longest = max(map(len, written))
    losses = [0.0] * len(written)
    with prompt.block(given, longest) as block:
        for place in range(longest):
            if place > 0:
                block.append_each([tokens[min(place, len(tokens)) - 1] for tokens in written])
            asked = sorted({tokens[place] for tokens in written if place < len(tokens)})
            rows = prompt.answers(block, len(written), asked)
            for candidate, tokens in enumerate(written):
                if place < len(tokens):
                    losses[candidate] -= float(rows[candidate, asked.index(tokens[place])])
    return losses


def _largest_spend(trials: Sequence[Trial]) -> PrivacySpend | None:
    """The largest ε and δ of the demonstrations; None where one is not private."""
    spends = [trial.demonstration.spent for trial in trials]
    known = [spent for spent in spends if spent is not None]
    if len(known) < len(spends) or not known:
        return None
    return PrivacySpend(max(spent.epsilon for spent in known), max(spent.delta for spent in known))


def _verbatim(record: Record) -> Demonstration:
    return Demonstration(
        text=record.text,
        label=record.label,
        token_count=0,
        private=False,
        spent=None,
        relation=Relation.ADD_REMOVE,
        mechanism="random-private",
    )


def _by_label(ones: Iterable[_Labelled]) -> defaultdict[str, list[_Labelled]]:
    groups: defaultdict[str, list[_Labelled]] = defaultdict(list)
    for one in ones:
        groups[one.label].append(one)
    return groups
