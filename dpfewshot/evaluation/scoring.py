"""Which test items a model gets right after a few demonstrations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BackendError
from dpfewshot.icl import Classifier, Extractor, batch_calibrated
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Record

EXTRACTED_TOKENS = 12
"""Of an extracted label at most."""


@dataclass(frozen=True)
class Score:
    """Which items were right, in order: "1" for right and "0" for wrong.

    Attributes:
        outcomes: of the classifier with contextual calibration, or of extraction.
        uncalibrated: of the classifier without calibration; None for extraction.
        batch_calibrated: with calibration by the test texts (`icl.batch_calibrated`); None for extraction.
    """

    outcomes: str
    uncalibrated: str | None = None
    batch_calibrated: str | None = None


@redacts_errors(BackendError, "scoring")
def score(
    task: Task, backend: LogprobBackend, demonstrations: Demonstrations, test: Sequence[Record]
) -> Score:
    """Label every test text, and compare.

    An extracted label is right if it is the item's, but for case and white space.

    Args:
        task: labels of its own are classified, free ones extracted.
        backend: the language model that uses the demonstrations.
        demonstrations: in order.
        test: texts and their labels.
    """
    texts = [record.text for record in test]
    if task.labels is None:
        written = Extractor(task, backend, demonstrations, max_tokens=EXTRACTED_TOKENS).predict(texts)
        return Score(_outcomes(map(_same, written, [record.label for record in test])))
    classifier = Classifier(task, backend, demonstrations)
    calibrated = classifier.predict_proba(texts)
    plain = calibrated * classifier.content_free  # what calibration had divided by
    truth = np.array([classifier.labels.index(record.label) for record in test])
    return Score(
        *(
            _outcomes(probabilities.argmax(axis=1) == truth)
            for probabilities in (calibrated, plain, batch_calibrated(calibrated))
        )
    )


def _same(written: str, label: str) -> bool:
    return written.casefold().split() == label.casefold().split()


def _outcomes(right: Iterable[bool]) -> str:
    return "".join("1" if one else "0" for one in right)
