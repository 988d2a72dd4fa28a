"""The pictures of docs/explanation.md and the README are what the script draws, with noise that keeps ε."""

from __future__ import annotations

from types import ModuleType

import pytest

from dpfewshot.accounting import PoissonGaussian, epsilon
from tests.support import pages


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return pages.script("draw_explanation")


def test_the_pictures_are_what_the_script_draws(script: ModuleType) -> None:
    for name, picture in script.pictures().items():
        assert (pages.DOCS / name).read_text(encoding="utf-8") == picture, (
            "run: python docs/draw_explanation.py"
        )


def test_the_noise_is_enough_for_one_record_of_eight_words(script: ModuleType) -> None:
    """A record's words have .48 of its row's squared norm, so the noise on a word's share tells σ."""
    weight = (0.48 / script.WORDS_OF_A_RECORD) ** 0.5
    for stated in script.EPSILONS:
        sigma = script.noise_on_share(stated) * script.RECORDS * weight
        assert epsilon(PoissonGaussian(1.0, sigma, 1), delta=script.DELTA).upper <= stated
        assert epsilon(PoissonGaussian(1.0, 0.9 * sigma, 1), delta=script.DELTA).upper > stated
