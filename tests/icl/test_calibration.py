"""Calibration by a batch removes a bias that is the same for every text."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dpfewshot as dpf
from dpfewshot import icl

LOGITS = arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(2, 6)), elements=st.floats(-8, 8))
LIKINGS = arrays(np.float64, 6, elements=st.floats(-8, 8))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@given(LOGITS, LIKINGS)
def test_a_liking_for_some_labels_makes_no_difference(logits: np.ndarray, likings: np.ndarray) -> None:
    fond = logits + likings[: logits.shape[1]]
    found, expected = icl.batch_calibrated(softmax(fond)), icl.batch_calibrated(softmax(logits))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_the_arithmetic_mean_would_make_one() -> None:
    """The control: the same property does not hold for what divides by the mean of the probabilities."""
    logits = np.array([[3.0, 0.0], [0.0, 1.0]])

    def divided(probabilities: np.ndarray) -> np.ndarray:
        return softmax(np.log(probabilities / probabilities.mean(axis=0)))

    assert np.abs(divided(softmax(logits + np.array([4, 0]))) - divided(softmax(logits))).max() > 0.01


def test_known_by_hand() -> None:
    found = icl.batch_calibrated([[0.9, 0.1], [0.5, 0.5]])  # odds 9 and 1, less their geometric mean 3
    np.testing.assert_allclose(found, [[0.75, 0.25], [0.25, 0.75]])
    np.testing.assert_allclose(icl.batch_calibrated([[0.9, 0.1]]), [[0.5, 0.5]])
    assert icl.batch_calibrated(np.empty((0, 3))).shape == (0, 3)


def test_a_probability_that_rounded_to_nothing_leaves_numbers() -> None:
    found = icl.batch_calibrated([[1.0, 0.0], [0.5, 0.5]])
    assert np.isfinite(found).all()
    assert found[0].argmax() == 0


@pytest.mark.parametrize("wrong", [[0.5, 0.5], [[0.5, np.nan]], [[1.5, -0.5]], [[np.inf, 0.5]]])
def test_what_is_no_table_of_probabilities_is_refused(wrong: list[object]) -> None:
    with pytest.raises(dpf.InvalidPlan, match="probabilities"):
        icl.batch_calibrated(wrong)


@pytest.mark.parametrize(
    ("content", "says"), [("{", "is not JSON"), ("[]", "not an object"), ("{}", "has no")]
)
def test_a_file_that_is_no_calibration_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bias.json").write_text(content)
    with pytest.raises(dpf.InvalidPlan, match=f"bias.json: .*{says}"):
        icl.Calibration.from_json("bias.json")
    with pytest.raises(dpf.InvalidPlan, match=r"missing.json: cannot be read"):
        icl.Calibration.from_json("missing.json")
