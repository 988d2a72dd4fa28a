"""`plan --set cross_check=true`: another accountant beside ours, and a clear word where it is missing."""

from __future__ import annotations

import builtins
import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dpfewshot.accounting import (
    Composition,
    FixedSizeGaussian,
    PoissonGaussian,
    PoissonRandomizedResponse,
    epsilon,
)
from dpfewshot.accounting import cross_check as module
from dpfewshot.accounting.cross_check import cross_check
from dpfewshot.cli import plan as command_module
from dpfewshot.errors import MissingExtra
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.values import PrivacyBudget, epsilon_text
from tests.support import factory


@pytest.fixture
def made() -> GenerationPlan:
    return factory.plan(factory.stratum_plan("Location", 400, budget=PrivacyBudget(2.0, 1e-3)))


@pytest.fixture
def dp_accounting() -> None:
    try:
        module.require()
    except MissingExtra:
        pytest.skip("the extra `accountants` is not installed")


def command(monkeypatch: pytest.MonkeyPatch, made: GenerationPlan, *arguments: str) -> str:
    synthesizer = SimpleNamespace(probe=lambda _: made)
    monkeypatch.setattr(command_module.Project, "synthesizer", lambda *_, **__: synthesizer)
    given = ["--task", "trec", "--records", "none", "--epsilon", "2", "--quiet", *arguments]
    result = CliRunner().invoke(command_module.plan, given, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.slow
@pytest.mark.usefixtures("dp_accounting")
def test_the_plan_prints_both_accountants(monkeypatch: pytest.MonkeyPatch, made: GenerationPlan) -> None:
    found = json.loads(command(monkeypatch, made, "--set", "cross_check=true", "--json"))
    assert set(found) == {*made.as_dict(), "cross_check"}
    (check,) = found["cross_check"]
    assert set(check) == {"scope", "certified", "dp_accounting"}
    assert check["scope"] == "Location"
    assert check["certified"] == found["epsilon"] == made.epsilon
    assert check["dp_accounting"] == pytest.approx(check["certified"], rel=1e-3)
    words = command(monkeypatch, made, "--set", "cross_check=true", "--details")
    assert f"{epsilon_text(made.epsilon)} certified here" in words
    assert f"dp-accounting {check['dp_accounting']:.4f}" in words


def test_without_the_option_nothing_else_is_imported(
    monkeypatch: pytest.MonkeyPatch, made: GenerationPlan
) -> None:
    without_dp_accounting(monkeypatch)
    assert "cross_check" not in json.loads(command(monkeypatch, made, "--json"))


def without_dp_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: object, **keywords: object) -> object:
        if name.split(".", maxsplit=1)[0] == "dp_accounting":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, made: GenerationPlan) -> None:
    without_dp_accounting(monkeypatch)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[accountants\]'"):
        command(monkeypatch, made, "--set", "cross_check=true")


@pytest.mark.usefixtures("dp_accounting")
def test_what_it_does_not_know_is_none() -> None:
    response = PoissonRandomizedResponse(1 / 500, 4.57, 100)
    certified = epsilon(response, 1e-5).upper
    assert cross_check(response, 1e-5, certified) == pytest.approx(certified, rel=0.02)
    assert cross_check(FixedSizeGaussian(10, 100, 1.0, 5), 1e-5, 3.0) is None


@pytest.mark.usefixtures("dp_accounting")
def test_mixtures_are_checked() -> None:
    event = Composition((PoissonGaussian(0.01, 0.8, 60), PoissonRandomizedResponse(0.02, 1.5, 40)))
    ours = epsilon(event, 1e-5)
    found = cross_check(event, 1e-5, ours.upper)
    assert ours.lower <= (found or 0) <= ours.upper * 1.005
