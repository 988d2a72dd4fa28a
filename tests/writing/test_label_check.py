"""Whether a model gives a text its label."""

from contextlib import nullcontext

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.errors import BackendError
from dpfewshot.mechanisms import (
    WordHistogram,
)
from tests.support.failing import Failing

COLOURS = ("dark red", "dark blue", "pale pink hue", "pale pink tone")


def checked(of_text, of_dark=(), of_pink=(), of_nothing=(1 / 9,) * 9, labels=COLOURS):
    """A set-up whose model answers so behind a rose and the beginnings of labels, and what has no content."""
    words = ["\n", " dark", " pale", " red", " blue", " pink", " hue", " tone", " rose"]

    def next_token(prompt):
        behind = {1: of_dark, 5: of_pink}.get(prompt[-1], [0] * 5 + [1] if prompt[-1] == 2 else of_text)
        known = list(behind if 8 in prompt else of_nothing)
        return [*known, *[0.0] * (9 - len(known))]

    task = dpf.Task("colours", "Write.", "Kind", "Text", labels)
    budget, model = dpf.PrivacyBudget(1, 1e-5), dpf.backends.Scripted(words, next_token)
    records = [dpf.Record("rose", label) for label in labels] * 20
    run = dpf.Synthesizer(task, records, model, budget=budget, mechanism=WordHistogram(), max_tokens=3)
    return run.set_up


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("answers", "fitting"),
    [
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 0.3, 0.7]}, [1]),
        ({"of_text": [0, 0.6, 0.4], "of_dark": [1]}, [0, 1]),  # it cannot say which
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 0.7]}, [0]),  # the other one is less likely
        ({"of_text": [0, 0.4, 0.6], "of_pink": [*[0] * 6, 0.6, 0.4]}, [2]),
        ({"of_text": [0, 0.4, 0.6], "of_pink": [*[0] * 6, 0.4, 0.6]}, [3]),
        ({"of_text": [1], "of_dark": [1], "of_pink": [1]}, [0, 1, 2, 3]),
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 1], "of_nothing": [0, 0.8, 0.2]}, [2, 3]),
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 1], "of_nothing": [0, 0.5, 0]}, [0]),
        ({"of_text": [0, 0.1, 0.9], "of_pink": [*[0] * 7, 1], "of_nothing": [0, 0.5, 0]}, [3]),
        ({"of_text": [0, np.nan, 0.9], "of_pink": [*[0] * 7, 1], "of_nothing": [0, np.nan, 0.9]}, [3]),
    ],
)
def test_a_text_fits_the_label_that_the_model_writes_and_any_if_it_knows_none(answers, fitting):
    set_up = checked(**answers)
    assert [COLOURS.index(label) for label in COLOURS if set_up.label_check.fits(label, "rose")] == fitting


def test_texts_without_content_are_weighed_together_and_asked_about_once():
    set_up, asked = checked([0, 0.6, 0.4], [0, 0, 0, 1]), []
    answer = set_up.backend.next_token_logprobs

    def biased(prompts, support):
        asked.append(len(prompts))
        rows = answer(prompts, support)
        return rows + np.log([[0.1, 1], [0.1, 1], [9, 1]]) if len(prompts) == 3 and 1 in support else rows

    set_up.backend.next_token_logprobs = biased  # together they have 9.2 to 3 for "dark": it is the bias
    assert not any(set_up.label_check.fits("dark red", "rose") for _ in range(2))
    assert asked.count(3) == asked.count(1) / 2


def test_a_model_that_is_away_is_an_error_and_one_that_fails_or_cannot_label_says_nothing():
    set_up = checked([0, 0.4, 0.6])
    assert not set_up.label_check.fits("dark red", "rose")
    for answer in (Failing(set_up.backend).away, lambda *_: np.zeros((9, 9))):
        set_up.backend.next_token_logprobs = answer
        with pytest.raises(BackendError, match="away") if "away" in answer.__name__ else nullcontext():
            assert set_up.label_check.fits("dark red", "rose")
    for name, value in (("vocabulary_size", 2), ("context_tokens", 3), ("tokenize", {}.__getitem__)):
        unable = checked([0, 0.4, 0.6])
        setattr(unable.backend, name, value)
        assert unable.label_check.fits("dark red", "rose")


def test_one_label_needs_no_check():
    set_up = checked([1], labels=("dark red",))
    set_up.backend.next_token_logprobs = Failing(set_up.backend).away
    assert set_up.label_check.fits("dark red", "rose")


def test_a_check_that_rounding_would_decide_says_nothing():
    set_up = checked([0, 0.5, 0.5 - 1e-6], [0, 0, 0, 1], [*[0] * 6, 1])
    assert all(set_up.label_check.fits(label, "rose") for label in ("dark red", "pale pink hue"))
