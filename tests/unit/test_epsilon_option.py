"""Only one word asks for no privacy; a number that is too large never does."""

import math

import click
import pytest

from dpfewshot.cli.application import run
from dpfewshot.cli.project import finite_or_inf


@pytest.mark.parametrize(
    "text", ["1e309", "-1e309", "nan", "-inf", "+inf", "Infinity", "INF", " inf", "four"]
)
def test_what_is_neither_finite_nor_the_word_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="word inf"):
        finite_or_inf(text)


def test_numbers_and_the_word_are_taken() -> None:
    assert finite_or_inf("inf") == math.inf
    assert [finite_or_inf(text) for text in ("4", "0.5", "1e-3", 4.0)] == [4.0, 0.5, 1e-3, 4.0]


@pytest.mark.parametrize("verb", ["generate", "plan", "audit", "evaluate"])
def test_every_verb_refuses_a_number_that_is_no_float(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [verb, "--task", "trec", "--records", "nowhere.jsonl", "--epsilon", "1e309"]
    assert run([*words, *(["--test", "nowhere.jsonl"] if verb == "evaluate" else [])]) == 2
    assert "the word inf" in capsys.readouterr().err
