"""docs/results/calibration.md has the tables of its raw figures."""

import json
from pathlib import Path

from bench.released_calibration import RAW, tables

PAGE = Path(__file__).parents[2] / "docs/results/calibration.md"


def test_the_page_has_the_tables_of_the_raw_file() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in tables(json.loads(RAW.read_text(encoding="utf-8"))["rows"]):
        assert table in page
