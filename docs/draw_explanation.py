"""Draws the pictures of the README and of docs/explanation.md.

    python docs/draw_explanation.py          # writes docs/data-way.svg, docs/neighbours.svg and docs/noise.svg

The chances in noise.svg are computed, not sampled: from the sums and the rate of `dpfewshot.mechanisms.SoftmaxChoice`,
whose token is a draw from their softmax. The words and their probabilities are made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.mechanisms import RowChange
from dpfewshot.mechanisms.softmax_choice import choice_rate

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
    (9, (0.50, 0.20, 0.15, 0.15, 0.00)),
    (6, (0.20, 0.50, 0.20, 0.10, 0.00)),
    (4, (0.15, 0.20, 0.45, 0.20, 0.00)),
    (1, (0.05, 0.03, 0.01, 0.01, 0.90)),
)
"""How many prompts predict which probabilities of the words after "My parcel". The last record is the one in question."""

EPSILONS = (2.0, 0.5, 0.1)
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


def votes(*, record: bool) -> NDArray[np.float64]:
    """The sum of the prompts' votes for each word; a prompt gives its favourite one vote."""
    return _core.sum_of_max_normalised(predictions(record=record)) / _core.grid


def chances(epsilon: float, *, record: bool) -> NDArray[np.float64]:
    """The probability of each word as the token that is released, at ε for this token."""
    rate = choice_rate(2 / epsilon, RowChange.ADDED)
    exponents = _core.sum_of_max_normalised(predictions(record=record)) * float(rate)
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
    """The chance of each word, without noise and at three ε, with and without one record."""
    parts = [text(20, 30, "My parcel …", "strong large"), *legend()]
    panels = [("votes, no noise", votes(record=True), votes(record=False), "{:.1f}")]
    panels += [
        (f"ε = {each:g} a word", chances(each, record=True), chances(each, record=False), "{:.1%}")
        for each in EPSILONS
    ]
    for number, (title, own, other, form) in enumerate(panels):
        parts += panel(84 + 204 * number, title, own, other, form)
        if number:
            ratio, most = np.maximum(own / other, other / own).max(), np.exp(EPSILONS[number - 1])
            parts.append(text(84 + 204 * number, 284, f"bar : mark up to {ratio:.2f}", "soft"))
            parts.append(text(84 + 204 * number, 304, f"allowed: e^ε = {most:.2f}", "soft"))
    parts += [text(76, 92 + 36 * number + 17, word, "end") for number, word in enumerate(WORDS)]
    return whole(
        318,
        "What noise does to one word",
        "Bars: how many of 20 prompts vote for each of five words, and how probable each word is as the released one at "
        f"epsilon {', '.join(f'{each:g}' for each in EPSILONS)}. Marks: the same without the one record that votes for "
        "the name Hollis. The smaller epsilon, the closer are bars and marks, and the closer are all words to each other.",
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
    """A bar and a mark for each word; the longest is 120 wide."""
    yield text(left, 74, title, "strong")
    scale = 120 / max(own.max(), other.max())
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
