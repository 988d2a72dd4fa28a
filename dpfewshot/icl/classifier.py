"""Classification by the probability of each label, with contextual calibration.

Its content-free texts are those of Zhao et al. (ICML 2021). If each label has a demonstration, they are mixed
words of the demonstrations (Fei, Hou, Chen, Bosselut, ACL 2023), which show what a prompt biases a model to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, InvalidPlan, InvalidTask
from dpfewshot.icl.calibration import Calibration
from dpfewshot.icl.prompt import BATCH, FewShotPrompt, Labeller, Question, no_answer
from dpfewshot.prompts.few_shot import PromptFormat, Text
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration

CONTENT_FREE: Final = ("N/A", "[MASK]", "")
"""Content-free texts: the model's answers to them are its bias (Zhao et al., section 5)."""

_MIXED: Final = 20
"""Content-free texts of the demonstrations' words."""

_LONGEST: Final = 40
"""The most words of one of them."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The likeliest label of one text, and the probability of each in the order of `Classifier.labels`."""

    label: str
    probabilities: tuple[float, ...]

    @property
    def probability(self) -> float:
        """The label's probability."""
        return max(self.probabilities)


class Classifier(Labeller[Prediction]):
    """Labels texts by the probability of each label after a few-shot prompt.

    A label of several tokens is scored as a whole (see `LabelTree`). Contextual calibration divides the
    probabilities p by p_cf, those of content-free texts, and normalises: W = diag(p_cf)⁻¹ and b = 0 of Zhao
    et al. p_cf is the mean over `CONTENT_FREE`, normalised over the labels; or, if each label has a
    demonstration and the context suffices, over 20 texts of their words, drawn from each label's in turn (Fei
    et al.).

    The prefix of instruction and demonstrations is evaluated once if the backend can keep it.

    Args:
        task: a task with labels, or the prompt's format.
        backend: sees the texts, and needs no further trust.
        demonstrations: released demonstrations in prompt order; without any, the prompt is zero-shot.
        calibrated: whether to calibrate, which evaluates 3 or 20 short texts now.
        calibration: what `dpf.release_calibration` released for these demonstrations and this model's tokens.
            It replaces contextual calibration.

    Attributes:
        labels: in the task's order.
        format: the prompt's wording.
        bias: what calibration takes off the labels' log-probabilities, in nats, shape (labels,); zeros
            without calibration.

    Raises:
        InvalidTask: labels are free, two have the same tokens, or a demonstration has an unknown label.
        InvalidPlan: the demonstrations exceed the backend's context, or the calibration is another prompt's.
        BackendError: the model or its server failed.
    """

    def __init__(
        self,
        task: Task | PromptFormat,
        backend: LogprobBackend,
        demonstrations: Iterable[Demonstration] = (),
        calibrated: bool = True,
        *,
        calibration: Calibration | None = None,
    ) -> None:
        shown = tuple(demonstrations)
        super().__init__(FewShotPrompt(task, backend, shown))
        if self.format.labels is None:
            raise InvalidTask("the task's labels are free: use Extractor, or give the labels to choose from")
        self.labels: tuple[str, ...] = self.format.labels
        self.calibrated = calibrated or calibration is not None
        self.tree = self.prompt.label_tree()
        self.bias: NDArray[np.float64] = np.zeros(len(self.labels))
        if calibration is not None:
            if calibration.labels != self.labels or calibration.prompt != self.prompt.fingerprint():
                raise InvalidPlan(
                    "calibration= was released for another prompt: other demonstrations, another order, "
                    "other labels or wording, or a model with other tokens"
                )
            self.bias = np.array(calibration.bias)
        elif calibrated:
            self.bias = self._content_free(shown)

    def __repr__(self) -> str:
        return f"Classifier(labels={self.labels}, calibrated={self.calibrated})"

    @redacts_errors(None)
    def predict_proba(self, texts: Text | Iterable[Text]) -> NDArray[np.float64]:
        """Return the probability of each label, shape (texts, labels); errors are those of `predict`.

        Rows sum to 1. A single text gives one row.
        """
        given = [texts] if isinstance(texts, (str, Mapping)) else texts
        rows = [one.probabilities for one in self.stream(given, batch_size=BATCH)]
        return np.array(rows, dtype=np.float64).reshape(-1, len(self.labels))

    def _answers(self, batch: Sequence[Question]) -> Iterator[Prediction]:
        for row in np.exp(_normalised(self._logprobs(batch) - self.bias)):
            yield Prediction(self.labels[int(row.argmax())], tuple(row.tolist()))

    def _label(self, answer: Prediction) -> str:
        return answer.label

    def _content_free(self, shown: Sequence[Demonstration]) -> NDArray[np.float64]:
        """Return log p_cf."""
        layout, context = self.format.layout, self.prompt.backend.context_tokens
        words = {label: list[str]() for label in self.labels}
        for one in shown:
            words[one.label] += " ".join(layout.values(one.text)).split()

        def asked(texts: Iterable[str]) -> list[tuple[None, list[int]]]:
            return [(None, self.prompt.question(layout.repeated(text))) for text in texts]

        questions = asked(CONTENT_FREE)
        if all(words.values()):
            length = sum(map(len, words.values())) // (len(shown) * len(layout.fields))
            mixed = asked(_mixed([*words.values()], min(_LONGEST, max(1, length))))
            longest = max(len(each) for _, each in mixed) + max(map(len, self.tree.beginnings))
            if context is None or len(self.prompt.prefix) + longest < context:
                questions = mixed
        bias: NDArray[np.float64] = np.logaddexp.reduce(self._logprobs(questions)) - np.log(len(questions))
        if not np.isfinite(bias).all():
            raise BackendError(
                "the backend gives a label probability 0 for content-free text, so predictions cannot be "
                "calibrated: use calibrated=False, or a backend that returns all probabilities"
            )
        return bias

    def _logprobs(self, questions: Sequence[tuple[int | None, list[int]]]) -> NDArray[np.float64]:
        """Return the labels' log-probabilities relative to each other, shape (texts, labels)."""
        scores = self.prompt.label_logprobs(self.tree, [question for _, question in questions])
        for (position, _), score in zip(questions, scores, strict=True):
            if not np.isfinite(score.max()):
                raise no_answer(position)
        return _normalised(scores)


def _mixed(words: Sequence[Sequence[str]], length: int) -> Iterator[str]:
    """Texts of this many words, drawn from those of each label in turn, by a hash: always the same."""
    for number in range(_MIXED):
        drawn = []
        for place in range(number * length, (number + 1) * length):
            of_label = words[place % len(words)]
            digest = hashlib.sha256(str(place).encode()).digest()
            drawn.append(of_label[int.from_bytes(digest, "big") % len(of_label)])
        yield " ".join(drawn)


def _normalised(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    return logprobs - np.logaddexp.reduce(logprobs, axis=1, keepdims=True)
