"""Calibration by texts: their average prediction measures the prompt's bias towards each label."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from dpfewshot.errors import InvalidPlan
from dpfewshot.planning import document
from dpfewshot.runtime.files import read_text, write_whole
from dpfewshot.values import PrivacySpend

_MEMBERS: Final[Mapping[str, tuple[type, ...]]] = {
    "labels": (list,),
    "bias": (list,),
    "noise": document.NUMBER,
    "prompt": (str,),
    **document.SPEND,
    "relation": (str,),
    "unit": document.MAYBE_TEXT,
    "parallel": (bool,),
    "certified": (bool,),
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """A released bias of one prompt (`dpf.release_calibration`). It is public: keep it with the prompt.

    Attributes:
        labels: in the task's order.
        bias: of each label, in nats: the noisy mean of clipped, centred log-probabilities after records.
        noise: the standard deviation of the noise on each bias, in nats.
        prompt: the fingerprint of the prompt and its labels that the bias belongs to.
        spent: the release's (ε, δ); None if not certified.
        relation: the neighbouring relation, "add-remove" or "zero-out".
        unit: the column that names whom a record belongs to; None where each record is a unit of its own.
        parallel: whether the account counts the greater of this release and generation, not their sum.
        certified: whether (ε, δ) holds. False for seeded runs.
    """

    labels: tuple[str, ...]
    bias: tuple[float, ...]
    noise: float
    prompt: str
    spent: PrivacySpend | None
    relation: str
    unit: str | None
    parallel: bool
    certified: bool

    def as_dict(self) -> dict[str, object]:
        """The calibration as JSON; `from_dict` reads it back."""
        told = asdict(self)
        spend = told.pop("spent") or {"epsilon": None, "delta": None}
        return told | spend | {"labels": list(self.labels), "bias": list(self.bias)}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """The calibration that `as_dict` made this from, or `InvalidPlan`, which names the member."""
        where = "the calibration"
        told = document.check(where, told, _MEMBERS)
        labels = tuple(told["labels"])
        if not labels or not all(isinstance(each, str) for each in labels):
            raise InvalidPlan("the calibration has 'labels' of the wrong type")
        bias = document.numbers(where, "bias", told["bias"])
        if len(bias) != len(labels):
            raise InvalidPlan("the calibration has other numbers of 'bias' and of 'labels'")
        if told["noise"] < 0:
            raise InvalidPlan("the calibration has a 'noise' below 0")
        return cls(
            labels=labels,
            bias=bias,
            noise=float(told["noise"]),
            prompt=told["prompt"],
            spent=document.spend(where, told, certified=told["certified"]),
            relation=document.relation(where, told["relation"]),
            unit=told["unit"],
            parallel=told["parallel"],
            certified=told["certified"],
        )

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write `as_dict` to a file. An existing one is replaced whole, or unchanged after an OSError."""
        write_whole(path, json.dumps(self.as_dict()) + "\n")

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `to_json` wrote; `InvalidPlan` names a file that is none."""
        text = read_text(path, InvalidPlan)
        try:
            return cls.from_dict(json.loads(text))
        except InvalidPlan as error:
            raise InvalidPlan(f"{path}: {error}") from None
        except (ValueError, RecursionError):
            raise InvalidPlan(f"{path}: is not JSON") from None


def batch_calibrated(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Divide each label's probabilities by their geometric mean over the texts, and normalise each text.

    Demonstrations bias some labels; content-free text, and so contextual calibration, reveals only part of
    the bias. A batch of real texts reveals more. A bias that multiplies a label's odds by the same factor for
    every text is removed exactly, so earlier calibration makes no difference. This follows batch calibration
    (Zhou et al., ICLR 2024), whose arithmetic mean has no such invariance.

    Labels should be about equally frequent: if most texts *have* one label, it looks like bias and is
    suppressed. Predictions depend on the rest of the batch, which should have dozens of texts.

    Args:
        probabilities: the result of `Classifier.predict_proba`, shape (texts, labels); each in 0..1.

    Raises:
        InvalidPlan: the shape or a value is wrong.
    """
    given = np.asarray(probabilities, dtype=np.float64)
    if given.ndim != 2 or not ((given >= 0) & (given <= 1)).all():  # noqa: PLR2004 - texts and labels
        raise InvalidPlan("probabilities must have the shape (texts, labels), each in 0..1")
    if given.shape[0] == 0:
        return given
    logprobs = np.log(np.maximum(given, np.finfo(np.float64).tiny))  # a probability may round to 0
    return np.asarray(softmax(logprobs - logprobs.mean(axis=0), axis=1))
