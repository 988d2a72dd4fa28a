"""Membership inference against a 1-shot prompt: the LOSS attack (Tang et al., Appendix F; Duan et al. 2023).

A prompt holds one demonstration. The attacker asks the prompted model about each candidate record and guesses
that those with the lowest loss are members: the score is minus the negative log-likelihood of the candidate's
label, or of the whole candidate. Members are the record in the prompt itself, or the records behind a
synthetic demonstration. All candidates of a trial have the demonstration's label; otherwise, recognising the
label alone would look like membership inference.
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
from dpfewshot.baselines import verbatim
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.icl import Classifier
from dpfewshot.icl.prompt import FewShotPrompt, no_answer
from dpfewshot.prompts.few_shot import PromptFormat, prompt_format
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacySpend, Record

Loss = Literal["label", "record"]

_Labelled = TypeVar("_Labelled", Demonstration, Record)


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt and the attacker's candidates. Its repr shows none of them.

    Attributes:
        demonstration: the demonstration in the prompt.
        members: the records behind it, or the record that it is.
        non_members: unrelated records, drawn like the members.
    """

    demonstration: Demonstration = field(repr=False)
    members: tuple[Record, ...] = field(repr=False)
    non_members: tuple[Record, ...] = field(repr=False)


_TOGETHER = 30
"""Candidates evaluated together: two groups of parallel streams."""


def trials_of_demonstrations(
    demonstrations: Iterable[Demonstration], members: Iterable[Record], non_members: Iterable[Record]
) -> list[Trial]:
    """Return one trial for each demonstration, and divide the candidates of a label among its trials.

    Args:
        demonstrations: synthetic demonstrations.
        members: the records behind them.
        non_members: other records. A fair draw should have separated them from the members.

    Raises:
        InvalidPlan: a label has fewer members, or fewer non-members, than demonstrations.
    """
    shown = _by_label(demonstrations)
    inside, outside = _by_label(members), _by_label(non_members)
    for label, ones in shown.items():
        if min(len(inside[label]), len(outside[label])) < len(ones):
            raise InvalidPlan("every demonstration needs its own member and non-member with its label")
    return [
        Trial(one, tuple(inside[label][place :: len(ones)]), tuple(outside[label][place :: len(ones)]))
        for label, ones in shown.items()
        for place, one in enumerate(ones)
    ]


def trials_of_records(
    records: Iterable[Record], non_members: Iterable[Record], *, each: int = 5
) -> list[Trial]:
    """Return one trial for each record, verbatim in the prompt: what synthetic demonstrations prevent.

    Args:
        records: each is the only member of its trial.
        non_members: other records; the trials of a label take turns with them.
        each: the number of non-members of a trial.

    Raises:
        InvalidPlan: a label has fewer than `each` non-members.
    """
    inside, outside = _by_label(records), _by_label(non_members)
    if any(len(outside[label]) < each for label in inside):
        raise InvalidPlan(f"every label needs at least {each} non-members")
    turns = {label: itertools.cycle(ones) for label, ones in outside.items()}
    return [
        Trial(verbatim(record), (record,), tuple(itertools.islice(turns[label], each)))
        for label, ones in inside.items()
        for record in ones
    ]


@redacts_errors(BackendError, "membership inference")
def membership_inference(
    task: Task | PromptFormat, backend: LogprobBackend, trials: Sequence[Trial], *, loss: Loss = "label"
) -> Finding:
    """Measure the attack's area under the ROC curve, averaged over trials, with a 95 % interval.

    Args:
        task: a task, or the prompt's format.
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
    area = average_area([_area_of_trial(words, backend, trial, loss) for trial in trials])
    spent = _largest_spend(trials)
    reference = largest_area(spent.epsilon, spent.delta) if spent else None
    held = "guessing has 0.5" if reference is None else f"their (ε, δ) allows {reference:.3f}"
    return Finding(
        kind="membership",
        title=f"Membership inference, 1-shot, {loss} loss",
        statement=(
            f"In {len(trials)} trials, the attack told members from non-members with AUC {area.value:.3f} "
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
    """-log p(label) relative to all labels. Without calibration: an attacker could undo it."""
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
    """-log p(written | prefix, given) of each candidate, in nats, token by token."""
    _check_room(prompt, given, written)
    losses: list[float] = []
    for start in range(0, len(written), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        losses += _summed(prompt, given[some], written[some])
    if np.isnan(losses).any():
        raise no_answer(int(np.isnan(losses).argmax()))
    return losses


def _check_room(prompt: FewShotPrompt, given: Sequence[list[int]], written: Sequence[list[int]]) -> None:
    """Refuse candidates that exceed the context: a backend's error could reveal lengths or name others.

    Raises:
        BackendError: names the position of the longest candidate.
    """
    context = getattr(prompt.backend, "context_tokens", None)
    together = len(prompt.prefix) + max(map(len, given)) + max(map(len, written))
    if context is not None and together >= context:  # the backend may prepend a token
        raise no_answer(max(range(len(written)), key=lambda place: len(given[place]) + len(written[place])))


def _summed(prompt: FewShotPrompt, given: Sequence[list[int]], written: Sequence[list[int]]) -> list[float]:
    """Evaluate some candidates in parallel; one that has ended repeats its last token."""
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
    """The largest ε and δ of the demonstrations; None if one has no guarantee."""
    spends = [trial.demonstration.spent for trial in trials]
    known = [spent for spent in spends if spent is not None]
    if len(known) < len(spends) or not known:
        return None
    return PrivacySpend(max(spent.epsilon for spent in known), max(spent.delta for spent in known))


def _by_label(ones: Iterable[_Labelled]) -> defaultdict[str, list[_Labelled]]:
    groups: defaultdict[str, list[_Labelled]] = defaultdict(list)
    for one in ones:
        groups[one.label].append(one)
    return groups
