"""ICLInf (Li et al.): how much one demonstration in a prompt moves the model's answer.

The influence of demonstration i of D on a text x is the largest change of a log-probability over answers y,

    max_y |log p(y | D, x) - log p(y | D without i, x)|

If demonstration i is a record, this is the largest privacy loss of an answer drawn from p: no smaller ε holds
at δ = 0. Answers are a classifier's labels, or every token of the vocabulary (the paper's full logits), for
observers of the whole distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpfewshot.audit.findings import AuditFinding, Figure
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.icl import Classifier
from dpfewshot.icl.prompt import FewShotPrompt, no_answer
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration

Answers = Literal["labels", "calibrated labels", "vocabulary"]


def influence_of(with_it: NDArray[np.float64], without_it: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return max_y |log p(y) - log p'(y)| for each pair of rows log p(y), in nats, shape (texts,).

    Answers impossible in both are ignored; an answer possible in only one gives infinity.
    """
    both_never = np.isneginf(with_it) & np.isneginf(without_it)
    gaps = np.subtract(with_it, without_it, out=np.zeros(with_it.shape), where=~both_never)
    largest: NDArray[np.float64] = np.abs(gaps).max(axis=-1)
    return largest


@redacts_errors(BackendError, "measuring influence")
def influences(
    task: Task | PromptFormat,
    backend: LogprobBackend,
    demonstrations: Sequence[Demonstration],
    texts: Sequence[str],
    *,
    over: Answers = "labels",
) -> NDArray[np.float64]:
    """Return the influence of each demonstration, left out in turn, on each text to label, in nats.

    Shape (demonstrations, texts).

    Args:
        demonstrations: in prompt order; the first is the furthest from the text.
        over: the task's "labels"; "calibrated labels", with contextual calibration of each prompt by itself;
            or "vocabulary", the next token out of all.

    Raises:
        InvalidPlan: there is no demonstration or no text, or `over` is unknown.
        InvalidTask: `over` needs labels and the task's are free; or a demonstration has an unknown label.
        BackendError: the model failed, or cannot evaluate a text.
    """
    if over not in get_args(Answers):
        raise InvalidPlan(f"over must be one of {', '.join(get_args(Answers))}, not {over!r}")
    if not demonstrations or not texts:
        raise InvalidPlan("give at least one demonstration and one text")

    def asked(shown: Sequence[Demonstration]) -> NDArray[np.float64]:
        if over == "vocabulary":
            return _next_tokens(FewShotPrompt(task, backend, shown), texts)
        classifier = Classifier(task, backend, shown, calibrated=over == "calibrated labels")
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(classifier.predict_proba(texts)))

    everything = asked(demonstrations)
    rest = [[*demonstrations[:i], *demonstrations[i + 1 :]] for i in range(len(demonstrations))]
    return np.stack([influence_of(everything, asked(others)) for others in rest])


def influence_finding(measured: Sequence[NDArray[np.float64]], *, over: Answers = "labels") -> AuditFinding:
    """Summarise the influences of several prompts: mean, largest, and mean by position. It is confidential.

    The mean has Student's 95 % interval over prompts, if there are several.

    Args:
        measured: the result of `influences` for each prompt, all with the same number of demonstrations.

    Raises:
        InvalidPlan: there is no prompt, or prompts have different numbers of demonstrations.
        BackendError: an influence is infinite: the backend gives some answer probability 0.
    """
    if len({len(each) for each in measured}) != 1:
        raise InvalidPlan("give at least one prompt, all with the same number of demonstrations")
    if not all(np.isfinite(each).all() for each in measured):
        raise BackendError("an influence is infinite: the backend gives some answer probability 0")
    of_positions = np.array([each.mean(axis=1) for each in measured])  # (prompts, positions)
    mean, largest = float(of_positions.mean()), float(max(each.max() for each in measured))
    low = high = None
    if len(measured) > 1:
        of_prompts = of_positions.mean(axis=1)
        reach = float(stats.t.ppf(0.975, len(of_prompts) - 1) * stats.sem(of_prompts))
        low, high = max(mean - reach, 0.0), mean + reach  # no influence is negative
    shots = of_positions.shape[1]
    return AuditFinding(
        kind="influence",
        title=f"Influence of a demonstration, {shots}-shot, {over}",
        statement=(
            f"One demonstration of {shots} moves some log-probability of the answer by {mean:.3g} nats on "
            f"average and {largest:.3g} at most: with records in the prompt, no smaller ε holds at δ = 0."
        ),
        verdict="informative",
        figures=(
            Figure("mean influence", mean, low, high),
            Figure("largest influence", largest),
            *(
                Figure(f"mean influence, position {place} of {shots}", float(value))
                for place, value in enumerate(of_positions.mean(axis=0), start=1)
            ),
        ),
        details={
            "over": over,
            "shots": shots,
            "prompts": len(measured),
            "texts": sum(each.shape[1] for each in measured),
        },
    )


def _next_tokens(prompt: FewShotPrompt, texts: Sequence[str]) -> NDArray[np.float64]:
    """The log-probability of every token after each text."""
    with prompt.block([prompt.question(text) for text in texts], 1) as block:
        rows = prompt.answers(block, len(texts))
    answered = np.isfinite(rows.max(axis=1))
    if not answered.all():
        raise no_answer(int(answered.argmin()))
    return rows
