"""Releases a prompt's bias towards each label under DP: the mean prediction for private records.

Batch calibration (Zhou et al., ICLR 2024) divides by the mean prediction for a batch of texts. Here they are
private records, so a service that labels one text at a time has the gain too. A record's vector is its
centred label log-probabilities, clipped to the L2 norm R = 2√K for K labels, with a public weight for its
label. The sum over a Poisson draw is released with one exact Gaussian. Proof: docs/proofs/calibration.md.
Why logarithms, and which weights: docs/decisions/evaluation.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.account import Account
from dpfewshot.account.amounts import EventCost
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import PoissonGaussian
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import DPFewShotError
from dpfewshot.exact import RandomSource, rounded_up
from dpfewshot.icl import Calibration, Classifier
from dpfewshot.mechanisms.gaussian import noise_scale
from dpfewshot.planning.planner import least_noise
from dpfewshot.planning.population import Population
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.records import as_records
from dpfewshot.releases.payment import open_payment
from dpfewshot.releases.scoring import RECORD_TOKEN_CAP, LabelScorer, Progress, scoring_progress
from dpfewshot.releases.selection import label_weights
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.sampling import PoissonSampler, drawable
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacyBudget, Record, check_whole

GRID = 2**20
"""Grid steps in the norm R."""

_LEAST = 1e-12
"""Smaller probabilities count as this one: a logarithm needs one above 0."""


@redacts_errors(DPFewShotError, "the release of a calibration")
def release_calibration(
    task: Task,
    records: Iterable[Record] | object,
    backend: LogprobBackend,
    demonstrations: Iterable[Demonstration] = (),
    *,
    budget: PrivacyBudget,
    account: Account | None = None,
    population: Population = None,
    unit: str | None = None,
    holdout: float = 0.0,
    scored_units: int = 1_000,
    prompt_format: PromptFormat | None = None,
    record_token_cap: int = RECORD_TOKEN_CAP,
    on_progress: Progress | None = None,
    random_source: RandomSource | None = None,
) -> Calibration:
    """Release a prompt's bias towards each label, for `icl.Classifier(..., calibration=)`, under (ε, δ).

    If most records *have* one label, it looks like bias. So the records of a label with more than the median
    number of units weigh less, where the number of each label is public.

    Args:
        task, records: as in `Synthesizer`; the task has labels, and records have all of them.
        backend: the model that will label texts, trusted with records; it must be batch-invariant.
        demonstrations: released demonstrations in prompt order; none for a zero-shot prompt.
        account, unit, record_token_cap: as in `Synthesizer`.
        population: public n, as in `Synthesizer`, of every label; one number, their sum, weighs labels alike.
        holdout: as in `choose`.
        scored_units: how many units are read on average, at most; each takes one prompt. Fewer cost less time
            and more noise.
        prompt_format: the prompt's wording; by default the task's.
        on_progress: as in `choose`.
        random_source: n to n uniform bytes, for tests alone: the release says `certified=False`.

    Raises:
        InvalidPlan: an argument is outside its range, or no noise meets the budget.
        InvalidTask: the task's labels are free.
        InvalidRecords: a record cannot be used, or the file of indexed records has changed; nothing is spent.
            An indexed record that cannot be read adds nothing to the sum.
        BackendNotBatchInvariant: the backend does not state batch invariance, or no longer does at the end.
        BackendError: the model or its server failed; the cost is given back.
        BudgetExceeded: the account does not allow it; nothing is computed from records.
        LedgerError: as in `Synthesizer`.
    """
    check_whole("scored_units", scored_units)
    classifier = Classifier(prompt_format or task, backend, demonstrations, calibrated=False)
    scorer = LabelScorer(classifier, record_token_cap)
    checked = as_records(records, unit=unit)
    payment = open_payment(
        task,
        checked,
        budget=budget if random_source is None else None,
        account=account,
        population=population,
        holdout=holdout,
    )
    weights, mean_weight = weights_of_labels(payment.counts)
    mean = NoisyMean.of_budget(
        budget, drawable(min(Fraction(1), scored_units / payment.population)), len(classifier.labels)
    )
    with payment.reserved(
        mean.cost,
        uses=1,
        noise_multiplier=mean.noise_multiplier,
        details={
            "mechanism": "calibration",
            "noise_multiplier": mean.noise_multiplier,
            "sampling_rate": str(mean.sampling_rate),
            "steps": 1,
        },
    ) as reservation:
        sampler = PoissonSampler(mean.sampling_rate, 1, 1, random_source)
        drawn = payment.units.take([one for (one,) in sampler.draw(payment.units.sizes)])  # private
        with scoring_progress(1, on_progress) as advance:
            rows = scorer.probabilities(drawn)
            advance()
        scorer.check_backend()
        permit = reservation.draw()
        units = payment.population * mean_weight
        bias = mean.release(rows, units, permit, random_source, weights_of_records(drawn, weights))
    return Calibration(
        labels=classifier.labels,
        bias=tuple(bias.tolist()),
        noise=mean.scale * mean.nats(units) * math.sqrt(1 - 1 / mean.labels),  # of a centred vector
        prompt=classifier.prompt.fingerprint(),
        spent=mean.cost.amount.as_spend() if random_source is None else None,
        relation=payment.relation,
        unit=payment.unit,
        parallel=payment.parallel,
        certified=random_source is None,
    )


def weights_of_labels(counts: Mapping[str, int]) -> tuple[dict[str, Fraction], Fraction]:
    """What a record of each label weighs, w = min(1, median n / n), and the mean of all units' weights."""
    if not counts:
        return {}, Fraction(1)
    weights = label_weights(counts, median_low(counts.values()))
    total = sum((weights[label] * count for label, count in counts.items()), Fraction(0))
    return weights, total / sum(counts.values())


def weights_of_records(
    records: Sequence[Record | None], by_label: Mapping[str, Fraction]
) -> NDArray[np.float64]:
    """The weight of each record: 1 if its label is not named, 0 if it cannot be read. Private."""
    weights = [0.0 if one is None else float(by_label.get(one.label, 1)) for one in records]
    return np.array(weights, dtype=np.float64)


@dataclass(frozen=True)
class NoisyMean:
    """The mean of clipped, centred log-probabilities of K `labels` with one exact Gaussian.

    Attributes:
        sampling_rate: q in (0, 1], exact: the probability that a unit is in the sum.
        noise_multiplier: σ, in norms R.
        cost: the certified (ε, δ), and its event.
    """

    sampling_rate: Fraction
    noise_multiplier: float
    labels: int
    cost: EventCost

    @classmethod
    def of_budget(cls, budget: PrivacyBudget, sampling_rate: Fraction, labels: int) -> NoisyMean:
        """The least certified noise for a budget; `InvalidPlan` if the budget is too small for any."""
        rate = rounded_up(sampling_rate)
        sigma, cost = least_noise(lambda noise: PoissonGaussian(rate, noise, 1), budget)
        return cls(sampling_rate, sigma, labels, EventCost(cost, PoissonGaussian(rate, sigma, 1)))

    @property
    def clip(self) -> float:
        """R = 2√K, the largest norm of a row, in nats."""
        return 2 * math.sqrt(self.labels)

    @property
    def scale(self) -> int:
        """The noise's standard deviation, in grid steps."""
        return noise_scale(self.noise_multiplier, 1, GRID)

    def nats(self, units: Fraction) -> float:
        """What a grid step of the sum is on the mean.

        `units` is the expected sum of all weights before sampling, a public constant.
        """
        return self.clip / GRID / float(self.sampling_rate * units)

    def release(
        self,
        rows: NDArray[np.float64],
        units: Fraction,
        permit: Permit,
        random_source: RandomSource | None,
        weights: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """The bias of each label in nats, shape (labels,).

        Args:
            rows: the label probabilities of one record of each drawn unit, shape (units, labels); 0 without
                an answer. Private.
            units: as in `nats`.
            weights: of these records, 0..1, shape (units,), private; None weighs all 1.
        """
        permit.use(self.noise_multiplier)
        noise = _core.rounded_normals(self.scale, self.labels, random_source)
        noisy = integers_of(rows, self.clip, weights).sum(axis=0) + noise
        centred: NDArray[np.float64] = noisy - noisy.mean()  # a common shift changes no prediction
        return centred * self.nats(units)


def integers_of(
    rows: NDArray[np.float64], clip: float, weights: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """Each row's centred log-probabilities, clipped to a norm, on the grid: their L2 norm is at most `GRID`.

    A row without an answer, which is zero or not finite, becomes zero. So does one whose integers exceed the
    norm, which rounding alone could cause. `clip` is R in nats, which becomes `GRID` steps; `rows`, each of
    which depends on one unit alone, and `weights` are as in `NoisyMean.release`.
    """
    answered = np.isfinite(rows).all(axis=1, keepdims=True) & rows.any(axis=1, keepdims=True)
    logprobs = np.log(np.maximum(np.where(answered, rows, 1.0), _LEAST))
    centred = logprobs - logprobs.mean(axis=1, keepdims=True)
    norms = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    steps = (GRID * (1 - 2**-40)) / np.maximum(norms, clip)
    if weights is not None:
        steps *= weights[:, np.newaxis]
    integers: NDArray[np.int64] = np.trunc(centred * steps).astype(np.int64)
    integers[(integers**2).sum(axis=1) > GRID**2] = 0
    return integers
