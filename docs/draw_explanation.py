"""Draws the pictures of the README and of docs/explanation.md.

    python docs/draw_explanation.py          # writes docs/data-way.svg, docs/neighbours.svg and docs/noise.svg

The chances in noise.svg are computed, not sampled: from the sums, the clip and the rate of
`dpfewshot.mechanisms.InvisibleInk`, whose token is a draw from their softmax. The words and their probabilities are made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.mechanisms import RowChange
from dpfewshot.mechanisms.choice import softmax_rate, solved_clip
from dpfewshot.planning.defaults import TEMPERATURE

DOCS = Path(__file__).parent
WIDTH = 900
STYLE = """
    svg { --page: #ffffff; --ink: #1f2328; --soft: #59636e; --edge: #8c959f; --trusted: #eef4ff; --public: #eefaf0;
      --box: #ffffff; --noise: #ffd9c2; --budget: #ffe9a8; --bar: #0067b5; --mark: #c85000; }
    @media (prefers-color-scheme: dark) {
      svg { --page: #0d1117; --ink: #f0f6fc; --soft: #9da7b3; --edge: #768390; --trusted: #14233a; --public: #12291a;
        --box: #0d1117; --noise: #6b2f10; --budget: #5c4708; --bar: #5ab4f5; --mark: #f29b4b; }
    }
    text { font-family: system-ui, sans-serif; font-size: 14.5px; fill: var(--ink); }
    .page { fill: var(--page); } .trusted { fill: var(--trusted); } .public { fill: var(--public); }
    .box { fill: var(--box); stroke: var(--edge); } .absent { stroke-dasharray: 5 4; }
    .noise { fill: var(--noise); } .budget { fill: var(--budget); }
    .middle { text-anchor: middle; } .end { text-anchor: end; } .soft { fill: var(--soft); font-size: 13.5px; }
    .strong { font-weight: 600; } .large { font-size: 17px; }
    .bar { fill: var(--bar); } .mark { stroke: var(--mark); stroke-width: 3; } .marked { fill: var(--mark); }
    path { fill: none; stroke: var(--ink); stroke-width: 1.8; } marker path { fill: var(--ink); stroke: none; }
"""

TIP = (
    '  <defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="9" markerHeight="9" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)

WORDS = ("never", "has", "is", "was", "Hollis")
PROMPTS = (
    (9, (0.50, 0.20, 0.15, 0.14, 0.01)),
    (6, (0.20, 0.50, 0.20, 0.09, 0.01)),
    (4, (0.15, 0.20, 0.45, 0.19, 0.01)),
    (1, (0.05, 0.03, 0.01, 0.01, 0.90)),
)
"""How many prompts predict which probabilities of the words after "My parcel". The last record is the one in question."""

PUBLIC = np.log(np.array([0.08, 0.30, 0.35, 0.25, 0.02], dtype=np.float32))
"""What the model predicts without records."""

EPSILONS = (1.0, 0.2, 0.05)
"""Of one token."""

TICKETS = (
    ("Delivery", "My parcel has not arrived."),
    ("Refund", "I want my money back."),
    ("Delivery", "Hollis, 12 Mill Lane: my parcel is lost."),
    ("Billing", "You charged me twice."),
)
"""Made-up records; the third is the one that neighbours differ in."""

DIFFERENT = 2


def predictions(*, record: bool) -> NDArray[np.float32]:
    """Log-probabilities, one row a prompt, with or without the last record's prompt."""
    rows = [row for count, row in PROMPTS for _ in range(count)]
    return np.log(np.maximum(np.array(rows[: None if record else -1]), 1e-30)).astype(np.float32)


def predicted(*, record: bool) -> NDArray[np.float64]:
    """The sum of the prompts' probabilities of each word."""
    return _core.sum_of_probabilities(predictions(record=record)) / _core.grid


def chances(epsilon: float, *, record: bool) -> NDArray[np.float64]:
    """The probability of each word as the token that is released, at ε for this token."""
    prompts = sum(count for count, _ in PROMPTS)
    clip = solved_clip(2 / epsilon, TEMPERATURE, prompts, RowChange.ADDED)
    total = _core.sum_of_clipped_differences(predictions(record=record), PUBLIC, clip)
    total += prompts * np.rint(PUBLIC.astype(np.float64) * _core.logit_grid).astype(np.int64)
    exponents = total * float(softmax_rate(Fraction(TEMPERATURE), prompts))
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()


def text(x: float, y: float, what: str, kind: str = "") -> str:
    """A line of text; `kind` names classes of the style."""
    return f'  <text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(what)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, *, corner: int = 8) -> str:
    """A rectangle; `kind` names classes of the style."""
    return f'  <rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{corner}"/>'


def arrow(*points: tuple[float, float]) -> str:
    """A line with a tip through these points."""
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'  <path d="M{way}" marker-end="url(#tip)"/>'


def station(x: float, title: str, lines: Sequence[str], kind: str = "box") -> Iterator[str]:
    """A box of the data's way, 150 wide, with a title and small lines."""
    yield rectangle(x, 62, 150, 104, f"box {kind}")
    yield text(x + 75, 88, title, "middle strong")
    yield from (text(x + 75, 112 + 19 * number, line, "middle soft") for number, line in enumerate(lines))


def data_way() -> str:
    """From private records to prompts of any model."""
    places = [24, 200, 376, 562, 730]
    parts = [
        rectangle(10, 10, 528, 256, "trusted", corner=12),
        rectangle(550, 10, 340, 256, "public", corner=12),
        text(24, 38, "your machine", "strong large"),
        text(564, 38, "anywhere, as often as you like", "strong large"),
        *station(places[0], "private records", ("a random draw", "for each", "demonstration")),
        *station(places[1], "a model of yours", ("reads one record", "a prompt, predicts", "the next word")),
        *station(places[2], "sum + noise", ("exact noise: only", "this step releases", "a word"), "noise"),
        *station(places[3], "demonstrations", ("synthetic texts,", "a certified (ε, δ)", "for all of them")),
        *station(places[4], "prompts", ("of any model,", "yours or", "anybody else's")),
        rectangle(places[2], 212, 150, 36, "box budget"),
        text(places[2] + 75, 235, "privacy budget", "middle strong"),
        arrow((places[2] + 75, 212), (places[2] + 75, 170)),
        text(720, 235, "costs no further privacy", "middle soft"),
        text(places[2] - 12, 235, "charged before each draw", "end soft"),
        arrow((places[2] + 40, 62), (places[2] + 40, 50), (places[1] + 110, 50), (places[1] + 110, 58)),
        text(places[1] + 114, 40, "word by word", "soft"),
        *(arrow((left + 150, 114), (right - 3, 114)) for left, right in pairwise(places)),
    ]
    return whole(
        276,
        "The data's way",
        "Private records go to a model on your machine, one record a prompt. The model predicts the next word of each "
        "prompt. The predictions are summed, exact noise is added, and one word is released, after the privacy budget "
        "was charged. The words form demonstrations with a certified guarantee, which may be used in prompts of any model.",
        parts,
    )


def neighbours() -> str:
    """Two data sets that differ in one record, and what may come out of them."""
    parts = []
    for left, name, own in ((20, "your records", True), (460, "the same without one of them", False)):
        parts.append(text(left, 32, name, "strong large"))
        for number, (label, ticket) in enumerate(TICKETS):
            gone = number == DIFFERENT and not own
            y = 48 + 42 * number
            kind = "box absent" if gone else "box noise" if number == DIFFERENT else "box"
            parts.append(rectangle(left, y, 420, 34, kind))
            parts.append(text(left + 12, y + 22, label, "soft"))
            parts.append(text(left + 92, y + 22, "in no prompt" if gone else ticket, "soft" if gone else ""))
        parts.append(arrow((left + 210, 214), (left + 210, 246)))
        parts.append(rectangle(left, 250, 420, 40, "box public"))
        parts.append(
            text(left + 210, 275, "demonstrations S with probability " + ("P" if own else "P'"), "middle")
        )
    parts.append(
        text(
            450, 318, "P ≤ e^ε · P' + δ   and   P' ≤ e^ε · P + δ,   for every set S of texts", "middle strong"
        )
    )
    return whole(
        334,
        "What a neighbour is",
        "Two data sets that are equal but for one record. In the second the record is in no prompt. Every set of "
        "demonstrations has nearly the same probability from both: at most e to the epsilon times, plus delta.",
        parts,
    )


def noise() -> str:
    """The chance of each word at three ε, with and without one record, between the records and the model alone."""
    parts = [text(20, 30, "My parcel …", "strong large"), *legend()]
    alone = np.exp(PUBLIC / TEMPERATURE) / np.exp(PUBLIC / TEMPERATURE).sum()
    panels = [
        ("no noise", predicted(record=True), predicted(record=False), "{:.1f}"),
        *(
            (f"ε = {each:g} a word", *(chances(each, record=own) for own in (True, False)), "{:.1%}")
            for each in EPSILONS
        ),
        ("no records", alone, alone, "{:.1%}"),
    ]
    for number, (title, own, other, form) in enumerate(panels):
        parts += panel(84 + 164 * number, title, own, other, form)
        if 0 < number <= len(EPSILONS):
            ratio, most = np.maximum(own / other, other / own).max(), np.exp(EPSILONS[number - 1])
            parts.append(text(84 + 164 * number, 284, f"bar : mark up to {ratio:.2f}", "soft"))
            parts.append(text(84 + 164 * number, 304, f"allowed: e^ε = {most:.2f}", "soft"))
    parts += [text(76, 92 + 36 * number + 17, word, "end") for number, word in enumerate(WORDS)]
    return whole(
        318,
        "What noise does to one word",
        "Bars: how probable 20 prompts find each of five words, added up, and how probable each word is as the released "
        f"one at epsilon {', '.join(f'{each:g}' for each in EPSILONS)} and without records. Marks: the same without the "
        "one record of Hollis. The smaller epsilon, the closer are bars and marks, and the closer is all to the model alone.",
        parts,
    )


def legend() -> Iterator[str]:
    """What a bar and a mark mean."""
    yield rectangle(436, 18, 22, 14, "bar", corner=2)
    yield text(466, 30, "with the record of Hollis", "soft")
    yield '  <line class="mark" x1="672" y1="16" x2="672" y2="34"/>'
    yield text(684, 30, "without it", "soft")


def panel(
    left: float, title: str, own: NDArray[np.float64], other: NDArray[np.float64], form: str
) -> Iterator[str]:
    """A bar and a mark for each word; the longest is 90 wide."""
    yield text(left, 74, title, "strong")
    scale = 90 / max(own.max(), other.max())
    for number, (bar, mark) in enumerate(zip(own, other, strict=True)):
        y = 92 + 36 * number
        yield rectangle(left, y, max(1.0, scale * bar), 22, "bar", corner=2)
        x = left + scale * mark
        yield f'  <line class="mark" x1="{x:.1f}" y1="{y - 3}" x2="{x:.1f}" y2="{y + 25}"/>'
        yield text(left + scale * max(bar, mark) + 8, y + 16, form.format(bar), "soft")


def whole(height: int, title: str, description: str, parts: Sequence[str]) -> str:
    """The picture, which says in words what it shows."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title desc">',
        f'  <title id="title">{escape(title)}</title>',
        f'  <desc id="desc">{escape(description)}</desc>',
        f"  <style>{STYLE}  </style>",
        TIP,
        rectangle(0, 0, WIDTH, height, "page", corner=12),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def pictures() -> dict[str, str]:
    """Each picture by its file's name."""
    return {"data-way.svg": data_way(), "neighbours.svg": neighbours(), "noise.svg": noise()}


if __name__ == "__main__":
    for name, picture in pictures().items():
        (DOCS / name).write_text(picture, encoding="utf-8")
