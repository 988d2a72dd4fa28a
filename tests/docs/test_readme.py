"""The README's figures follow from the raw results, its texts were released, and it stays short."""

import json
import re

from bench import readme
from bench.readme import README, written

TEXT = README.read_text(encoding="utf-8")
RELEASED = readme.RAW.with_name("readme.jsonl")
LINES = 120


def test_both_tables_follow_from_the_raw_results() -> None:
    assert written(TEXT) == TEXT, "run: python -m bench.readme"


def test_a_figure_that_was_changed_is_found() -> None:
    accuracy = re.search(r"\d\d\.\d \[", TEXT)
    assert accuracy is not None
    assert written(TEXT.replace(accuracy[0], "99.9 [")) == TEXT


def test_every_text_that_is_shown_was_released_under_what_is_stated() -> None:
    demonstrations = [json.loads(line) for line in RELEASED.read_text(encoding="utf-8").splitlines()]
    assert demonstrations
    for one in demonstrations:
        assert one["private"]
        assert one["epsilon"] <= 1
        assert f"| {one['text']} |" in TEXT


def test_it_is_short() -> None:
    assert TEXT.count("\n") <= LINES
