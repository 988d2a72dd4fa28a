import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dpfewshot.accounting import ZeroConcentrated, calibrate, epsilon
from dpfewshot.audit.private_prediction import (
    PredictionLosses,
    Setting,
    prediction_losses,
    private_prediction_audit,
    token_losses,
)
from dpfewshot.backends import Scripted
from dpfewshot.exact import rounded_up
from dpfewshot.mechanisms import Draws, PrivatePrediction, RowChange
from dpfewshot.values import Record
from tests.support.laws import release_law
from tests.support.scripts import TASK

DELTA = 1e-5
PROMPTS = 12
CANDIDATES = [" yes", " no", " perhaps"]


def calibrated(target: float, tokens: int, clip: float, prompts: int) -> Setting:
    """The lowest temperature that meets the target ε."""

    def event(sigma: float) -> ZeroConcentrated:
        return ZeroConcentrated(rounded_up(1 / (2 * Fraction(sigma) ** 2)), tokens)

    sigma = calibrate(event, epsilon=target, delta=DELTA)
    return Setting(clip, rounded_up(Fraction(sigma) * Fraction(clip) / prompts), prompts, event(sigma))


SETTING = calibrated(20, tokens=8, clip=4.0, prompts=PROMPTS)
entries = st.one_of(st.floats(-30, 0, width=32), st.just(-math.inf))


@given(npst.arrays(np.float32, (4, 3), elements=entries), st.floats(0.1, 20), st.floats(0.2, 5))
def test_losses_are_those_of_the_exact_distributions_that_tokens_are_drawn_from(rows, clip, tau) -> None:
    """The law of the release itself, in integers, against the paper's formula in floating point."""
    draws = Draws(1.0, 1, 1, PROMPTS, RowChange.ADDED)
    release = PrivatePrediction(top_k=None, clip=clip).start(draws, PROMPTS * tau / clip)
    found = token_losses(rows, Setting(clip, tau, PROMPTS, SETTING.event))
    with mpmath.workdps(40):
        p = release_law("private-prediction", release, rows, rows[0])
        for i, losses in enumerate(found):
            q = release_law("private-prediction", release, np.delete(rows, i, axis=0), rows[0])
            exact = [float(mpmath.log(a / b)) for a, b in zip(p, q, strict=True)]
            assert losses == pytest.approx(exact, abs=1e-5)


def test_a_worst_case_record_reaches_the_range_of_the_change() -> None:
    """Many are certain of one token and one of another, whose loss there comes near 2c/(sτ)."""
    rows = np.full((PROMPTS * 5, 3), -1e6, dtype=np.float32)
    rows[:-1, 0] = rows[-1, 1] = 0
    losses = token_losses(rows, dataclasses.replace(SETTING, temperature=1.0))
    bound = 2 * 4.0 / PROMPTS
    assert 0.99 * bound <= losses[-1, 1] <= bound * (1 + 1e-12)
    assert np.abs(losses).max() <= bound * (1 + 1e-12)
    assert np.abs(losses[:, 0]).max() < 0.01 * bound, "the token that all expect says little of anybody"


def test_an_absent_prompt_loses_nothing() -> None:
    rows = np.log(np.array([[0.5, 0.3, 0.2], [np.nan] * 3, [0.1, 0.1, 0.8]], dtype=np.float32))
    losses = token_losses(rows, dataclasses.replace(SETTING, temperature=1.0))
    assert not losses[1].any()
    assert losses[0].any()


class Opinions(Scripted):
    """Says what the record in its prompt says, with certainty, and nobody's prompt ends the demonstration."""

    def __init__(self) -> None:
        self.words = [*CANDIDATES, " so", "\n"]
        super().__init__(self.words, self.answer)

    def answer(self, prompt: list[int]) -> list[float]:
        says = next((token for token in prompt if token < 2), None)
        if says is None:
            return [0.3, 0.3, 0.3, 0.1, 0]
        return [float(token == says) for token in range(5)]


def batch() -> list[Record]:
    return [Record(" yes so", TASK.labels[0])] * (PROMPTS - 1) + [Record(" no so", TASK.labels[0])]


def one_run(setting: Setting = SETTING) -> PredictionLosses:
    return prediction_losses(TASK, batch(), Opinions(), TASK.labels[0], setting, max_tokens=6, top_k=3)


def test_measured_losses_are_below_their_claims() -> None:
    runs = [one_run() for _ in range(5)]
    finding = private_prediction_audit(runs, SETTING, delta=DELTA)
    assert finding.verdict == "passed"
    assert finding.confidential
    token, run = finding.figures
    assert token.reference == pytest.approx(2 * 4.0 / (PROMPTS * SETTING.temperature))
    assert 0.5 * token.reference < token.value <= token.reference
    assert run.value <= run.reference <= 20
    assert run.reference == pytest.approx(
        min(6 * token.reference, epsilon(ZeroConcentrated(SETTING.event.rho, 6), DELTA).upper)
    )
    assert finding.details["tokens"] == 6


def test_control_half_the_sensitivity_is_caught() -> None:
    """σ = 2sτ/c claimed: a quarter of ρ, and half of a token's range."""
    claimed = dataclasses.replace(SETTING, event=ZeroConcentrated(SETTING.event.rho / 4, 8))
    finding = private_prediction_audit([one_run()], claimed, delta=DELTA)
    assert finding.verdict == "failed"
    assert finding.figures[0].value > finding.figures[0].reference


def test_control_a_clip_that_is_not_kept_is_caught() -> None:
    unclipped = dataclasses.replace(SETTING, clip=3 * SETTING.clip)
    assert private_prediction_audit([one_run(unclipped)], SETTING, delta=DELTA).verdict == "failed"


def test_the_loss_of_a_run_sums_over_its_tokens() -> None:
    run = one_run()
    assert run.worst.shape == (6,)
    assert run.of_run.shape == (PROMPTS,)
    assert np.abs(run.of_run).max() <= run.worst.sum() * (1 + 1e-9)
    assert run.of_run[:-1] == pytest.approx(run.of_run[0])
    twice = PredictionLosses(np.array([0.1, 0.2]), np.array([-0.3, 0.05]))
    assert private_prediction_audit([twice], SETTING, delta=DELTA).figures[1].value == 0.3


def test_what_cannot_be_audited_is_refused() -> None:
    with pytest.raises(ValueError, match="no runs"):
        private_prediction_audit([], SETTING, delta=DELTA)
    for records in ([], [*batch(), *batch()]):
        with pytest.raises(ValueError, match=f"1 to {PROMPTS} records"):
            prediction_losses(TASK, records, Opinions(), TASK.labels[0], SETTING, max_tokens=6)


@pytest.mark.model
def test_on_a_real_model_every_record_loses_less_than_is_claimed() -> None:
    import dpfewshot as dpf
    from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets

    records = [record for record in support_tickets() if record.label == "Refund"][:3]
    setting = calibrated(10, tokens=2, clip=5.0, prompts=3)
    model = dpf.backends.packaged_model_path()
    with dpf.backends.LlamaCpp(model, context_tokens=128, threads=1) as backend:
        run = prediction_losses(SUPPORT_TICKETS, records, backend, "Refund", setting, max_tokens=2)
    assert private_prediction_audit([run], setting, delta=DELTA).verdict == "passed"
    assert run.worst.min() > 0
