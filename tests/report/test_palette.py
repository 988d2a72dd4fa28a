"""The report's colours, by the formula that accessibility checks use."""

from __future__ import annotations

import re
from importlib import resources

import pytest

SHEET = (resources.files("dpfewshot.report") / "templates" / "report.css").read_text("utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+):(#\w{6});", theme))
    for theme in re.findall(r":root\{color-scheme:\w+;([^}]*)\}", SHEET)
)

GROUNDS = ("ground", "panel")
TEXTS = ("ink", "quiet", "link", "good", "bad")
THEMES = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])


@THEMES
def test_text_stands_out(colours) -> None:
    for ground in GROUNDS:
        assert {name for name in TEXTS if contrast(colours[name], colours[ground]) < 4.5} == set()
    assert contrast(colours["warning-ink"], colours["warning-ground"]) >= 4.5
    assert set(LIGHT) == set(DARK)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # the well-known grey


def linear(colour: str) -> list[float]:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def contrast(first: str, second: str) -> float:
    """From 1 to 21, by WCAG 2.2's definition."""
    low, high = sorted(
        sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))
        for colour in (first, second)
    )
    return (high + 0.05) / (low + 0.05)
