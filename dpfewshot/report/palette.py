"""The report's colours, one set for light and one for dark, as CSS variables.

On both grounds, the contrast of text is at least 4.5 (WCAG 2.2, 1.4.3), that of axes and series at least 3
(1.4.11); grid lines are decoration. Series colours are Okabe and Ito's palette for all kinds of colour
vision, adjusted to that contrast. Charts never tell series apart by colour alone: markers and dashes differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LIGHT: Final[Mapping[str, str]] = {
    "ground": "#ffffff",
    "panel": "#f3f5f8",
    "ink": "#16191d",
    "quiet": "#4a5461",
    "link": "#0b57b0",
    "good": "#0a6640",
    "bad": "#a8231a",
    "warning-ground": "#fff1cc",
    "warning-ink": "#4a3600",
    "axis": "#6b7684",
    "grid": "#dde2e8",
    "series-1": "#0067b5",
    "series-2": "#c85000",
    "series-3": "#00805c",
    "series-4": "#9a4a86",
    "series-5": "#574b00",
    "series-6": "#3b4047",
}
DARK: Final[Mapping[str, str]] = {
    "ground": "#14171b",
    "panel": "#1f242b",
    "ink": "#eef1f4",
    "quiet": "#b4bdc9",
    "link": "#82b8ff",
    "good": "#5fd39b",
    "bad": "#ff9489",
    "warning-ground": "#453500",
    "warning-ink": "#ffe9ad",
    "axis": "#8b96a5",
    "grid": "#353c46",
    "series-1": "#5ab4f5",
    "series-2": "#f29b4b",
    "series-3": "#2fc79a",
    "series-4": "#e09acb",
    "series-5": "#e8d74e",
    "series-6": "#d3d8de",
}
SERIES: Final = 6
"""The number of series colours; a chart with more series starts over."""


def css_variables() -> str:
    """Both sets as CSS. Print is always light."""
    light, dark = (_declarations(colours) for colours in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
    )


def _declarations(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())
