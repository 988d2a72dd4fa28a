"""Scoring: which test items a model gets right after a few demonstrations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BackendError
from dpfewshot.icl import Classifier, Extractor, batch_calibrated
from dpfewshot.icl.extractor import same_label
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Record

EXTRACTED_TOKENS = 12
"""The most tokens of an extracted label."""


@dataclass(frozen=True)
class Score:
    """The outcome of each item in order: "1" if it was right, "0" if not.

    Attributes:
        outcomes: with contextual calibration, or of extraction.
        uncalibrated: without calibration; None for extraction.
        batch_calibrated: with calibration by the test texts (`icl.batch_calibrated`); None for extraction.
    """

    outcomes: str
    uncalibrated: str | None = None
    batch_calibrated: str | None = None


@redacts_errors(BackendError, "scoring")
def score(
    task: Task, backend: LogprobBackend, demonstrations: Demonstrations, test: Sequence[Record]
) -> Score:
    """Label every test text, and compare with its label.

    Extracted labels are compared up to case and white space.

    Args:
        task: its labels are classified, or extracted if they are free.
        backend: the language model that uses the demonstrations.
        demonstrations: in prompt order.
        test: texts with their labels.
    """
    texts = [record.text for record in test]
    if task.labels is None:
        written = Extractor(task, backend, demonstrations, max_tokens=EXTRACTED_TOKENS).predict(texts)
        return Score(_outcomes(map(same_label, written, [record.label for record in test])))
    classifier = Classifier(task, backend, demonstrations)
    calibrated = classifier.predict_proba(texts)
    plain = calibrated * classifier.content_free  # undo the division of calibration
    truth = np.array([classifier.labels.index(record.label) for record in test])
    return Score(
        *(
            _outcomes(probabilities.argmax(axis=1) == truth)
            for probabilities in (calibrated, plain, batch_calibrated(calibrated))
        )
    )


def _outcomes(right: Iterable[bool]) -> str:
    return "".join("1" if one else "0" for one in right)
