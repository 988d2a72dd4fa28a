"""The JSON of choices and calibrations: what it keeps, and which documents are refused, by member."""

import json
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.icl import Calibration
from tests.releases.test_choosing import HELPFUL, Follower, choose, private_records
from tests.support.factory import calibration

FORMAT = {"instruction": "Sort.", "text_field": "Text", "label_field": "Kind", "labels": None}
FORMAT |= {"label_words": None, "text_fields": [], "multiline": False, "chat": False}
HUGE = 10**400
"""A whole number that no float holds."""
CALIBRATION = calibration()


def test_a_choice_and_a_calibration_survive_json() -> None:
    for choice in (choose([[], HELPFUL]), choose([[]], [Follower()] * 2)):
        assert dpf.Choice.from_dict(json.loads(json.dumps(choice.as_dict()))) == choice
    assert Calibration.from_dict(json.loads(json.dumps(CALIBRATION.as_dict()))) == CALIBRATION


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"index": -7}, "'index' below 0"),
        ({"index": 1.9}, "'index'"),
        ({"index": HUGE}, "'index'"),
        ({"balanced": "yes"}, "'balanced'"),
        ({"certified": 1}, "'certified'"),
        ({"certified": False}, "certified=False"),
        ({"epsilon": None}, "certified=True"),
        ({"epsilon": -1}, "'epsilon'"),
        ({"epsilon": HUGE}, "'epsilon'"),
        ({"epsilon": float("nan")}, "'epsilon'"),
        ({"delta": 1}, "'delta'"),
        ({"total": {"epsilon": float("inf"), "delta": 0}}, "'total' has a 'epsilon'"),
        ({"total": {"epsilon": 1.0}}, "'total' has no 'delta'"),
        ({"relation": "nonsense"}, "relation must be one of"),
        ({"unit": 7}, "'unit'"),
        ({"accuracy": {"value": HUGE, "low": 0, "high": 1}}, "an estimate has a 'value'"),
        ({"accuracy": {"value": "0.5", "low": 0, "high": 1}}, "an estimate has a 'value'"),
        ({"demonstrations": "abc"}, "'demonstrations'"),
        ({"demonstrations": [None]}, "'demonstrations'"),
        ({"demonstrations": [HELPFUL[0].as_line() | {"epsilon": HUGE}]}, "'demonstrations'"),
        ({"format": {}}, "'format' has no 'instruction'"),
        ({"format": FORMAT | {"labels": "ab"}}, "'format' has a 'labels'"),
        ({"format": FORMAT | {"text_field": ""}}, "'format': .* text_field"),
        ({"calibration": []}, "the calibration is not an object"),
    ],
)
def test_what_is_no_choice_is_refused(changes: dict[str, Any], says: str) -> None:
    told = choose([[], HELPFUL], records=private_records(20)).as_dict()
    with pytest.raises(dpf.InvalidPlan, match=says):
        dpf.Choice.from_dict(told | changes)


@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("bias", [[0.0], ["a", "b"], [float("nan")] * 2, [True, 0.0], [HUGE, 0.0]]),
        ("labels", [None, [1, None]]),
        ("prompt", [7]),
        ("noise", [-1.0, float("nan"), HUGE]),
        ("epsilon", [-5.0, float("nan"), None]),
        ("delta", [7.0]),
        ("certified", [None, 1, False]),
        ("parallel", [-1]),
        ("unit", [7]),
    ],
)
def test_what_is_no_calibration_is_refused(member: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(dpf.InvalidPlan, match="the calibration has"):
            Calibration.from_dict(CALIBRATION.as_dict() | {member: value})
    with pytest.raises(dpf.InvalidPlan, match="relation must be one of"):
        Calibration.from_dict(CALIBRATION.as_dict() | {"relation": "nonsense"})


@pytest.mark.parametrize("told", [None, [], "x", 5])
@pytest.mark.parametrize("kind", [dpf.Choice, Calibration])
def test_a_release_is_an_object(kind: Any, told: Any) -> None:
    with pytest.raises(dpf.InvalidPlan, match="not an object"):
        kind.from_dict(told)
