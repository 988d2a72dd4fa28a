"""A plan with more noise than its text bears says so, and what would help."""

from __future__ import annotations

import re

import pytest

from bench.notes import NOTES, PATIENT_NUMBER, notes
from dpfewshot.mechanisms import PublicCentred
from dpfewshot.planning.guidance import READABLE_NOISE
from dpfewshot.planning.plan import GenerationPlan
from tests.support.factory import synthesizer


def planned(tokens: int, prompts: int, *, every: int | None = None) -> GenerationPlan:
    """The plan of texts of so many tokens at ε = 4, for 200 units a label."""
    return synthesizer(
        mechanism=PublicCentred(8),
        prompts_per_token=prompts,
        max_tokens=tokens,
        resample_every=every or tokens,
    ).plan


def test_the_prompts_that_a_warning_names_are_the_fewest_that_may_do() -> None:
    (warning,) = planned(60, 20).warnings
    named = re.search(r"prompts_per_token=(\d+) or more \(prompt_token_limit=(\d+)", warning)
    assert named is not None
    prompts, work = map(int, named.groups())
    bearable, _ = READABLE_NOISE["public-centred"]
    assert (planned(60, prompts - 1).noise_on_mean or 0.0) > bearable
    assert planned(60, 2 * prompts).warnings == ()
    assert planned(60, prompts).prompt_tokens == work


def test_a_warning_names_no_more_prompts_than_there_are_units() -> None:
    (warning,) = planned(9000, 10).warnings
    assert "more prompts_per_token, a resample_every below 9000" in warning
    assert "prompts_per_token=" not in warning
    (warning,) = planned(9000, 200).warnings
    assert "prompts_per_token" not in warning
    assert "resample_every" not in warning  # a fresh draw would take every unit again


@pytest.mark.parametrize("prompts", [20, 40])
def test_fewer_tokens_on_a_draw_have_less_noise_with_as_many_prompts(prompts: int) -> None:
    noises = [planned(60, prompts, every=every).noise_on_mean or 0.0 for every in (60, 15, 1)]
    assert noises == sorted(noises, reverse=True)


def test_a_long_text_is_planned_with_a_warning_and_a_short_one_without() -> None:
    assert planned(20, 40).warnings == ()
    (warning,) = planned(400, 40).warnings
    assert "makes little sense" in warning
    assert "with about 40 of 400 tokens out of place, and more above it" in warning
    (warning,) = planned(20, 19).warnings
    assert "words out of place" in warning
    assert "with about 1 token in 25 out of place" in warning
    assert "a smaller max_tokens" in warning


def test_made_up_notes_have_several_lines_and_a_number_each() -> None:
    made = notes(100)
    assert made == notes(100)
    assert {one.label for one in made} == set(NOTES.labels or ())
    for one in made:
        assert NOTES.layout.fold(one.text) == one.text
        assert len(one.text.splitlines()) == len("RHMEFAP")
    assert len({number for one in made for number in PATIENT_NUMBER.findall(one.text)}) == len(made)
