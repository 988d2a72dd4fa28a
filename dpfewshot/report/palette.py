"""Colours, one set for light and one for dark, as CSS variables; and the contrast that they must have.

Series colours follow Okabe and Ito's palette for all kinds of colour vision, moved until each stands out from
both grounds. No chart tells series apart by colour alone: markers and dashes differ too.
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
"""How many colours series take turns with."""

GROUNDS: Final = ("ground", "panel")
TEXTS: Final = ("ink", "quiet", "link", "good", "bad")
"""Colours of text, which need a contrast of 4.5 on both grounds (WCAG 2.2, 1.4.3)."""

GRAPHICS: Final = ("axis", *(f"series-{number}" for number in range(1, SERIES + 1)))
"""Colours of what a chart is read from, which need 3 (WCAG 2.2, 1.4.11). Grid lines only help the eye."""


def css_variables() -> str:
    """Both sets as CSS. Paper is always light."""
    light, dark = (_declarations(colours) for colours in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
    )


def contrast(first: str, second: str) -> float:
    """The contrast of two colours, from 1 to 21 (WCAG 2.2's definition).

    Args:
        first: as "#rrggbb".
        second: likewise.
    """
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    weights = (0.2126, 0.7152, 0.0722)
    return sum(weight * _linear(channel) for weight, channel in zip(weights, channels, strict=True))


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4  # noqa: PLR2004 - sRGB


def _declarations(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())
