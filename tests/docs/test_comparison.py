"""docs/comparison.md and its plots are what bench.peers writes from the stored measurements."""

from bench.peers import page
from bench.peers.figures import cells
from bench.peers.raw import read


def test_the_page_is_written_from_the_raw_lines() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(read(), cells())


def test_the_plots_are_drawn_from_the_raw_lines() -> None:
    for name, picture in page.plots(read(), cells()).items():
        assert (page.PAGE.parent / name).read_text(encoding="utf-8") == picture
        assert name in page.PAGE.read_text(encoding="utf-8")
