"""The effect of label bias on AG News and TREC, into docs/results/raw/calibration.json.

    python -m bench.calibration DATA STORE

Uses the demonstrations that bench/utility.py keeps in STORE. Each is used without calibration, with contextual calibration
(Zhao et al., 2021: divide by the scores of content-free texts) and with `icl.batch_calibrated` by the test texts, and the
share of the most predicted label is stored beside the accuracy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.batched import Batched
from bench.utility import REPETITIONS, backend, experiment, ours, settings_of
from bench.utility_data import DATA_SETS
from bench.utility_settings import Stored
from dpfewshot.evaluation import Condition, Experiment, NonPrivateSample, Trial, ZeroShot
from dpfewshot.icl import Classifier, batch_calibrated
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parents[1] / "docs/results/raw/calibration.json"
TASKS = ("agnews", "trec")


def trials(task: str, store: Path) -> list[Trial]:
    """No demonstrations, and those of each setting at ε = 1 or without privacy."""
    settings: tuple[tuple[Condition, float | None], ...] = (
        (NonPrivateSample(), None),
        (ours(DATA_SETS[task]), None),
        *((setting, 1.0) for setting in settings_of(DATA_SETS[task], 1.0)),
    )
    return [Trial(ZeroShot(), 0.0, shots=0)] + [
        Trial(Stored(setting, store), epsilon, repetition=repetition)
        for setting, epsilon in settings
        for repetition in range(REPETITIONS)
    ]


def calibrations(data: Experiment, model: Batched, trial: Trial) -> dict[str, dict[str, float]]:
    """Accuracy, and the share of the most predicted label, by calibration."""
    made = trial.condition.demonstrations(data.request(trial))
    classifier = Classifier(data.task, model, made)
    contextual = classifier.predict_proba([item.text for item in data.test])
    truth = np.array([classifier.labels.index(item.label) for item in data.test])
    return {
        "none": found(contextual * classifier.content_free, truth),
        "contextual": found(contextual, truth),
        "batch": found(batch_calibrated(contextual), truth),
    }


def found(scores: NDArray[np.float64], truth: NDArray[np.intp]) -> dict[str, float]:
    """Both, from probabilities up to a factor in each row, shape (texts, labels)."""
    predicted = scores.argmax(axis=1)
    return {
        "accuracy": float((predicted == truth).mean()),
        "most_predicted": float(np.bincount(predicted).max() / len(truth)),
    }


def main(data: str, store: str) -> None:
    """Measures every task."""
    model = backend("gemma", threads=1, context=1024)
    results = []
    for task in TASKS:
        of_task = experiment(DATA_SETS[task], Path(data), model, None, "gemma")
        for trial in trials(task, Path(store)):
            one = {
                "task": task,
                "setting": trial.condition.name,
                "epsilon": trial.epsilon,
                "repetition": trial.repetition,
                **calibrations(of_task, model, trial),
            }
            results.append(one)
            print(json.dumps(one), file=sys.stderr, flush=True)
    write_whole(RAW, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
