"""The report's colours, by the formula that accessibility checks use."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import pytest

from dpfewshot.report.charts import SERIES

SHEET = (resources.files("dpfewshot.report") / "templates" / "report.css").read_text("utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+):(#\w{6});", theme))
    for theme in re.findall(r":root\{color-scheme:\w+;([^}]*)\}", SHEET)
)

GROUNDS = ("ground", "panel")
TEXTS = ("ink", "quiet", "link", "good", "bad")
GRAPHICS = ("axis", *(f"series-{number}" for number in range(1, SERIES + 1)))
THEMES = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
COLOUR_BLIND = {
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


@THEMES
def test_text_and_graphics_stand_out(colours) -> None:
    for ground in GROUNDS:
        assert {name for name in TEXTS if contrast(colours[name], colours[ground]) < 4.5} == set()
        assert {name for name in GRAPHICS if contrast(colours[name], colours[ground]) < 3} == set()
    assert contrast(colours["warning-ink"], colours["warning-ground"]) >= 4.5
    assert set(LIGHT) == set(DARK)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # the well-known grey


@THEMES
def test_series_differ_for_all_kinds_of_colour_vision(colours) -> None:
    series = [colours[name] for name in GRAPHICS if name.startswith("series")]
    for matrix in COLOUR_BLIND.values():
        seen = [see(colour, matrix) for colour in series]
        assert min(distance(*pair) for pair in itertools.combinations(seen, 2)) > 10
    red, green = (see(colour, COLOUR_BLIND["deutan"]) for colour in ("#b05a00", "#6f7300"))
    assert distance(red, green) < 10  # a control: brown and olive


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


def see(colour: str, matrix) -> list[float]:
    """The colour in CIE L*a*b*, as somebody with that colour vision sees it."""
    rgb = [min(max(sum(m * c for m, c in zip(row, linear(colour), strict=True)), 0), 1) for row in matrix]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(m * c for m, c in zip(row, rgb, strict=True)) for row in to_xyz]
    x, y, z = (cube(value / white) for value, white in zip(xyz, (0.9505, 1, 1.089), strict=True))
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def cube(t: float) -> float:
    return t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116


def distance(one: list[float], other: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
