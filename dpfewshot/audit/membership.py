"""Membership inference against a 1-shot prompt: the LOSS attack (Tang et al., Appendix F; Duan et al. 2023).

A prompt holds one demonstration. The attacker asks the prompted model about each candidate record and guesses
that those with the lowest loss are members. Members are the record in the prompt itself, or the records
behind a synthetic demonstration. All candidates of a trial have the demonstration's label; otherwise,
recognising the label alone would look like membership inference.

The area under a trial's ROC curve is the probability that a member scores above a non-member, ties counting
half. Trials are independent, scores within one are not, so the interval is over trials: Student's t on the
logit scale. If all trials agree, their spread of 0 says nothing, and the interval is Clopper and Pearson's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from scipy import special, stats

from dpfewshot.audit.bounds import clopper_pearson
from dpfewshot.audit.findings import AuditFinding, Figure
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.baselines import verbatim
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.icl import Classifier
from dpfewshot.icl.prompt import FewShotPrompt, LabelTree, no_answer
from dpfewshot.prompts.few_shot import PromptFormat, prompt_format
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacySpend, Record, by_label

Loss = Literal["label", "record"]

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class MembershipTrial:
    """One prompt and the attacker's candidates. Its repr shows none of them.

    The non-members are drawn like the members.
    """

    demonstration: Demonstration = field(repr=False)
    members: tuple[Record, ...] = field(repr=False)
    non_members: tuple[Record, ...] = field(repr=False)


def trials_of_demonstrations(
    demonstrations: Iterable[Demonstration], members: Iterable[Record], non_members: Iterable[Record]
) -> list[MembershipTrial]:
    """Return one trial for each synthetic demonstration, and divide a label's candidates among its trials.

    The members are the records behind them. A fair draw should have separated the non-members from these.

    Raises:
        InvalidPlan: a label has fewer members, or fewer non-members, than demonstrations.
    """
    shown = by_label(demonstrations)
    inside, outside = by_label(members), by_label(non_members)
    for label, ones in shown.items():
        if min(len(inside.get(label, ())), len(outside.get(label, ()))) < len(ones):
            raise InvalidPlan("every demonstration needs its own member and non-member with its label")
    return [
        MembershipTrial(
            one, tuple(inside[label][place :: len(ones)]), tuple(outside[label][place :: len(ones)])
        )
        for label, ones in shown.items()
        for place, one in enumerate(ones)
    ]


def trials_of_records(
    records: Iterable[Record], non_members: Iterable[Record], *, each: int = 5
) -> list[MembershipTrial]:
    """Return one trial for each record, verbatim in the prompt: what synthetic demonstrations prevent.

    The record is the only member of its trial. The trials of a label take turns with the non-members, of
    which each trial has `each`.

    Raises:
        InvalidPlan: a label has fewer than `each` non-members.
    """
    inside, outside = by_label(records), by_label(non_members)
    if any(len(outside.get(label, ())) < each for label in inside):
        raise InvalidPlan(f"every label needs at least {each} non-members")
    turns = {label: itertools.cycle(ones) for label, ones in outside.items()}
    return [
        MembershipTrial(verbatim(record), (record,), tuple(itertools.islice(turns[label], each)))
        for label, ones in inside.items()
        for record in ones
    ]


@redacts_errors(BackendError, "membership inference")
def membership_inference(
    task: Task | PromptFormat,
    backend: LogprobBackend,
    trials: Sequence[MembershipTrial],
    *,
    loss: Loss = "label",
) -> AuditFinding:
    """Measure the attack's area under the ROC curve, averaged over trials, with a 95 % interval.

    Args:
        backend: the attacked language model. It reads the candidates.
        trials: at least two, independent.
        loss: "label", the loss of the candidate's label after its text, as in the papers (relative to the
            task's labels, if it has any); or "record", the loss of text and label after the prompt, for
            attackers who see the likelihood of whole texts.

    Returns:
        A confidential finding. If all demonstrations are differentially private, its reference is the largest
        area that their ε and δ allow, and it fails if the whole interval is above that.

    Raises:
        InvalidPlan: there are fewer than two trials, one lacks members or non-members, or `loss` is unknown.
        InvalidTask: the task does not have a candidate's label.
        BackendError: the model failed, or cannot evaluate a candidate.
    """
    if loss not in get_args(Loss):
        raise InvalidPlan(f"loss must be one of {', '.join(get_args(Loss))}, not {loss!r}")
    words = task if isinstance(task, PromptFormat) else prompt_format(task)
    areas = []
    for trial in trials:
        candidates = [*trial.members, *trial.non_members]
        scores = [-value for value in losses(words, backend, trial.demonstration, candidates, loss)]
        areas.append(roc_area(scores[: len(trial.members)], scores[len(trial.members) :]))
    value, low, high = average_area(areas)
    spent = _largest_spend(trials)
    reference = largest_area(spent.epsilon, spent.delta) if spent else None
    held = "guessing has 0.5" if reference is None else f"their (ε, δ) allows {reference:.3f}"
    return AuditFinding(
        kind="membership",
        title=f"Membership inference, 1-shot, {loss} loss",
        statement=(
            f"In {len(trials)} trials, the attack told members from non-members with AUC {value:.3f} "
            f"({low:.3f} to {high:.3f}); {held}."
        ),
        verdict="informative" if reference is None else "failed" if low > reference else "passed",
        figures=(Figure("AUC", value, low, high, reference),),
        details={
            "loss": loss,
            "trials": len(trials),
            "members": sum(len(trial.members) for trial in trials),
            "non_members": sum(len(trial.non_members) for trial in trials),
            "epsilon": spent.epsilon if spent else None,
            "delta": spent.delta if spent else None,
        },
    )


def roc_area(members: Sequence[float], non_members: Sequence[float]) -> float:
    """Return the area under one trial's ROC curve: the share of pairs whose member scores higher."""
    if len(members) == 0 or len(non_members) == 0:
        raise InvalidPlan("a trial needs at least one member and one non-member")
    inside, outside = np.array(members)[:, None], np.array(non_members)
    if np.isnan(inside).any() or np.isnan(outside).any():
        raise InvalidPlan("a score is not a number")
    return float(((inside > outside) + 0.5 * (inside == outside)).mean())


def average_area(areas: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean area of at least two independent trials, with the ends of its 95 % interval."""
    if len(areas) < 2:  # noqa: PLR2004 - a spread needs two
        raise InvalidPlan("an interval over trials needs at least two trials")
    mean, error = float(np.mean(areas)), float(stats.sem(areas))
    if error > 0:
        on_logits = special.logit(mean), error / (mean * (1 - mean))
        low, high = special.expit(stats.t.interval(_CONFIDENCE, len(areas) - 1, *on_logits))
    else:  # exact where all areas are 1: that many wins in that many trials
        low, high = clopper_pearson(float(np.sum(areas)), len(areas), (1 - _CONFIDENCE) / 2)
    return mean, float(low), float(high)


def largest_area(epsilon: float, delta: float) -> float:
    """Return the largest expected area that (ε, δ)-differential privacy allows (docs/how-to/audit.md).

    It is 1 - e^-ε·(1/2 - δ), δ ≤ 1/2, if neighbours add, remove, zero out or replace one unit and a fair draw
    chose the members among the candidates.
    """
    return 1 - math.exp(-epsilon) * (0.5 - delta)


def losses(
    words: PromptFormat,
    backend: LogprobBackend,
    shown: Demonstration,
    candidates: Sequence[Record],
    loss: Loss,
) -> list[float]:
    """Return the loss of each candidate after a prompt with one demonstration, in nats.

    The loss of a label is relative to all labels, if there are any, without calibration: an attacker could
    undo it. A candidate that the model cannot evaluate is an error, whose message has its position alone.
    """
    if loss == "label" and words.labels is not None:
        columns = [words.words.index(words.word(record.label)) for record in candidates]
        classifier = Classifier(words, backend, [shown], calibrated=False)
        probabilities = classifier.predict_proba([record.text for record in candidates])
        with np.errstate(divide="ignore"):
            relative: list[float] = (-np.log(probabilities[range(len(columns)), columns])).tolist()
        return relative
    prompt = FewShotPrompt(words, backend, [shown])
    scored = [(prompt.question(one.text), prompt.label(words.word(one.label))) for one in candidates]
    if loss == "record":
        scored = [([], [*text, *label]) for text, label in scored]
    # A backend's own error could reveal lengths, or name another candidate. It may prepend a token.
    lengths = [len(prompt.prefix) + len(text) + len(label) for text, label in scored]
    context = backend.context_tokens
    if context is not None and max(lengths) >= context:
        raise no_answer(lengths.index(max(lengths)))
    trees = [(LabelTree([label], backend.vocabulary_size), text) for text, label in scored]
    found = [-float(prompt.label_logprobs(tree, [text])[0, 0]) for tree, text in trees]
    if np.isnan(found).any():
        raise no_answer(int(np.isnan(found).argmax()))
    return found


def _largest_spend(trials: Sequence[MembershipTrial]) -> PrivacySpend | None:
    """The largest ε and δ of the demonstrations; None if one has no guarantee."""
    known = [spent for trial in trials if (spent := trial.demonstration.spent) is not None]
    if len(known) < len(trials):
        return None
    return PrivacySpend(max(spent.epsilon for spent in known), max(spent.delta for spent in known))
