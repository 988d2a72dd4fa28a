r"""Private prediction's empirical privacy loss against its theoretical one (Li et al., ICLInf, section 5).

In the paper's symbols, z_i are prompt i's logits, clipped to max(-c, z_i - max z_i + c); s is the constant
number of prompts; a token is drawn from p = softmax(Σ z_i/(sτ)); p_(i) omits record i's row. Then

    loss of token x for record i     log p(x) - log p_(i)(x)
    worst loss of a token            its largest size over x and i: at most 2c/(sτ), the range of the change
    loss of a run for record i       the sum over the released tokens: at most ε, apart from δ

The loop and mechanism of demonstrations release the tokens, which are then discarded. The losses follow from
these formulas in floating point, with one record in each prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from dpfewshot.account.draws import Terms
from dpfewshot.account.permit import Permit
from dpfewshot.account.reservation import Reservation
from dpfewshot.accounting import ZeroConcentrated
from dpfewshot.accounting import epsilon as certified_epsilon
from dpfewshot.audit.findings import AuditFinding, Figure
from dpfewshot.backends.protocol import LogprobBackend, Logprobs
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.generation.token_loop import TextRequest, TokenLoop
from dpfewshot.generation.units import Bodies
from dpfewshot.mechanisms import Draws, PrivatePrediction, Release, RowChange
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.records.units import each_a_unit
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.sampling import PoissonSampler
from dpfewshot.tasks import Task
from dpfewshot.values import Record

_TOKEN_CAP = 100  # as in plans

_ROUNDING = 1e-6
"""Relative tolerance: losses come from float32 rows, and claims are rounded up."""


@dataclass(frozen=True)
class Setting:
    """Settings of private prediction.

    Attributes:
        clip: c > 0, in nats.
        temperature: τ > 0.
        prompts: s, the constant number of prompts that the mean is taken over, however many rows there are.
        event: all tokens at these settings.
    """

    clip: float
    temperature: float
    prompts: int
    event: ZeroConcentrated


def token_losses(rows: Logprobs, setting: Setting) -> NDArray[np.float64]:
    """Return the loss log p(x) - log p_(i)(x) for every record i and token x, in nats.

    `rows` are logits or log-probabilities, shape (rows, candidates). A row of NaN is an absent prompt.
    """
    logits, clip = rows.astype(np.float64), setting.clip
    largest = logits.max(axis=1, keepdims=True)
    absent = ~np.isfinite(largest)
    clipped = np.maximum(-clip, np.where(absent, 0.0, logits) - np.where(absent, 0.0, largest) + clip)
    exponents = np.where(absent, 0.0, clipped) / (setting.prompts * setting.temperature)
    total = exponents.sum(axis=0)
    with_record = log_softmax(total)
    return np.stack([with_record - log_softmax(total - row) for row in exponents])


@dataclass(frozen=True, slots=True)
class PredictionLosses:
    """The losses of one run.

    Attributes:
        worst: each released token's largest loss over candidates and records, shape (tokens,).
        of_run: each record's sum of losses over the released tokens, shape (records,).
    """

    worst: NDArray[np.float64]
    of_run: NDArray[np.float64]


@dataclass
class _Watched:
    """A release that records the losses of each token, possible and released."""

    release: Release
    setting: Setting
    worst: list[float] = field(default_factory=list)
    said: list[NDArray[np.float64]] = field(default_factory=list)

    def support(self, public_logprobs: Logprobs, excluded: frozenset[int]) -> list[int]:
        return self.release.support(public_logprobs, excluded)

    def token(self, logprobs: Logprobs, public_logprobs: Logprobs, permit: Permit) -> int | None:
        losses = token_losses(logprobs, self.setting)
        token = self.release.token(logprobs, public_logprobs, permit)
        self.worst.append(float(np.abs(losses).max()))
        if token is not None:
            self.said.append(losses[:, token])
        return token


@redacts_errors(BackendError, "measuring losses")
def prediction_losses(
    task: Task,
    records: Sequence[Record],
    backend: LogprobBackend,
    label: str,
    setting: Setting,
    *,
    max_tokens: int,
    top_k: int | None = 100,
) -> PredictionLosses:
    """Release tokens of a label from one batch of records, one in each prompt, and measure their losses.

    The batch has 1 to s records; an end token stops the run before `max_tokens`. `top_k` is the number of
    likeliest public tokens that are candidates; None is all.

    Raises:
        InvalidPlan: there is no record, or more than s.
        BackendError: the model failed for a cause other than a single record.
    """
    if not 1 <= len(records) <= setting.prompts:
        raise InvalidPlan(
            f"a batch must have 1 to {setting.prompts} records, as many as the setting has prompts"
        )
    writer = PromptWriter(task, backend, _TOKEN_CAP)
    noise_multiplier = setting.prompts * setting.temperature / setting.clip
    draws = Draws(1.0, 1, max_tokens, setting.prompts, RowChange.ADDED)
    mechanism = PrivatePrediction(top_k=top_k, clip=setting.clip)
    watched = _Watched(mechanism.start(draws, noise_multiplier), setting)
    unpaid = Reservation.make(None, Terms(None, None, 1, max_tokens, noise_multiplier, {}))
    request = TextRequest(
        units=Bodies(each_a_unit(records), writer.body),
        sampler=PoissonSampler(Fraction(1), setting.prompts, records_per_prompt=1),
        release=watched,
        reservation=unpaid,
        prompts=writer.for_label(label),
        max_tokens=max_tokens,
    )
    for _ in TokenLoop(backend, task.layout).tokens(request):
        pass
    return PredictionLosses(np.array(watched.worst), np.sum(watched.said, axis=0))


def private_prediction_audit(
    runs: Sequence[PredictionLosses], setting: Setting, *, delta: float
) -> AuditFinding:
    """Compare measured losses with the claims of the setting's event.

    A token's claim is the range ε₀ = √(8ρ). A run's, for T tokens, is the lesser of T·ε₀ and the certified ε
    of T tokens at δ. No loss ever exceeds the first; a sound release exceeds the second with probability
    about δ for each record of a run. The finding is confidential, and fails if a loss exceeds its claim.

    Raises:
        InvalidPlan: there is no run.
    """
    if not runs:
        raise InvalidPlan("there are no runs to audit")
    tokens = max(len(run.worst) for run in runs)
    of_token = math.sqrt(8 * setting.event.rho)
    of_run = min(
        tokens * of_token, certified_epsilon(ZeroConcentrated(setting.event.rho, tokens), delta).upper
    )
    token_loss = max(float(run.worst.max()) for run in runs)
    run_loss = max(float(np.abs(run.of_run).max()) for run in runs)
    kept = token_loss <= of_token * (1 + _ROUNDING) and run_loss <= of_run * (1 + _ROUNDING)
    return AuditFinding(
        kind="private-prediction",
        title="Private prediction: measured privacy loss",
        statement=(
            f"In {len(runs)} runs of at most {tokens} tokens, the largest loss of a token was "
            f"{token_loss:.4g} (claim: {of_token:.4g}), and of a run {run_loss:.4g} (claim: {of_run:.4g} at "
            f"δ = {delta:g})."
        ),
        verdict="passed" if kept else "failed",
        figures=(
            Figure("largest loss of a token", token_loss, reference=of_token),
            Figure("largest loss of a run", run_loss, reference=of_run),
        ),
        details={
            "clip": setting.clip,
            "temperature": setting.temperature,
            "prompts": setting.prompts,
            "delta": delta,
            "runs": len(runs),
            "tokens": tokens,
        },
    )
