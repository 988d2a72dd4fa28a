"""The README's figures and texts are those of the results, and it stays short."""

import re

from bench.readme import README, written

TEXT = README.read_text(encoding="utf-8")
LINES = 116


def test_every_table_follows_from_the_raw_results() -> None:
    assert written(TEXT) == TEXT, "run: python -m bench.readme"


def test_a_figure_that_was_changed_is_found() -> None:
    accuracy = re.search(r"\d\d\.\d \[", TEXT)
    assert accuracy is not None
    assert written(TEXT.replace(accuracy[0], "99.9 [")) == TEXT


def test_it_is_short() -> None:
    assert TEXT.count("\n") <= LINES
