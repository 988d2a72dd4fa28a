"""What audits return goes through JSON unchanged, and what JSON cannot carry is refused."""

import json

import pytest

from dpfewshot.audit import AuditFinding, Figure, as_document


def _finding(*, confidential=True):
    return AuditFinding(
        kind="membership",
        title="Membership inference",
        statement="An attacker tells members from others no better than by chance.",
        verdict="informative",
        confidential=confidential,
        figures=(Figure("AUC", 0.51, low=0.47, high=0.55, reference=0.5), Figure("members", 100)),
        details={"attack": "LOSS"},
    )


def test_a_finding_survives_json():
    assert AuditFinding.from_dict(json.loads(json.dumps(_finding().as_dict()))) == _finding()


def test_a_document_is_confidential_as_soon_as_one_finding_is():
    assert as_document([_finding(), _finding(confidential=False)])["confidential"] is True
    assert as_document([_finding(confidential=False)])["confidential"] is False


def test_a_figure_is_found_by_name():
    assert _finding().figure("AUC").low == 0.47
    with pytest.raises(KeyError):
        _finding().figure("accuracy")


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400, "1"])
def test_a_figure_is_finite(number):
    for figure in ({"value": number}, {"value": 1.0, "high": number}, {"value": None}):
        with pytest.raises(ValueError, match="not finite"):
            Figure("epsilon", **figure)


@pytest.mark.parametrize(("field", "value"), [("kind", "guess"), ("verdict", "fine")])
def test_kinds_and_verdicts_are_known(field, value):
    with pytest.raises(ValueError, match=field):
        AuditFinding.from_dict(_finding().as_dict() | {field: value})
