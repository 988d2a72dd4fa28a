"""Draws the pictures of the README and of docs/explanation.md.

    python docs/draw_explanation.py          # writes docs/data-way.svg, docs/neighbours.svg and docs/noise.svg

The noise in noise.svg is computed: that of `dpfewshot.mechanisms.WordHistogram`, by the planner. The words and their
shares are made up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from dpfewshot.mechanisms import WordHistogram
from dpfewshot.mechanisms.word_histogram import WORDS
from dpfewshot.planning.plan import Stratum
from dpfewshot.planning.planner import plan_stratum
from dpfewshot.planning.settings import PlanSettings
from dpfewshot.values import PrivacyBudget
from dpfewshot.writing.histogram import CLEAR

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

RECORDS, WORDS_OF_A_RECORD = 200, 8

SHARES = {"parcel": 0.64, "order": 0.45, "arrived": 0.30, "street": 0.08, "Hollis": 1 / RECORDS}
"""The share of records that have a word. One record alone has the last: the one in question."""

EPSILONS = (4.0, 1.0, 0.5)
DELTA = 1e-5

TICKETS = (
    ("Delivery", "My parcel has not arrived."),
    ("Refund", "I want my money back."),
    ("Delivery", "Hollis, 12 Mill Lane: my parcel is lost."),
    ("Billing", "You charged me twice."),
)
"""Made-up records; the third is the one that neighbours differ in."""

DIFFERENT = 2


def noise_on_share(epsilon: float) -> float:
    """The standard deviation of the noise on the share of records that have a word."""
    settings = PlanSettings(
        RECORDS, 1, max_tokens=20, shots_per_label=1, tokens_per_draw=20, record_token_cap=100
    )
    mechanism, stratum = WordHistogram(), Stratum("Delivery", ("Delivery",), RECORDS)
    planned = plan_stratum(mechanism, settings, PrivacyBudget(epsilon, DELTA), stratum)
    weight = math.sqrt(WORDS / WORDS_OF_A_RECORD)
    return planned.noise_multiplier / (RECORDS * weight)


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
        text(564, 38, "costs no further privacy", "strong large"),
        *station(places[0], "private records", ("of one label,", "one or many", "a customer")),
        *station(places[1], "their words", ("and first words,", "lengths, ends: all", "weigh the same")),
        *station(
            places[2], "count + noise", ("exact noise: only", "this step tells of", "the records"), "noise"
        ),
        *station(places[3], "demonstrations", ("a model writes them", "from the noisy", "count alone")),
        *station(places[4], "prompts", ("of any model,", "as often as", "you like")),
        rectangle(places[2], 212, 150, 36, "box budget"),
        text(places[2] + 75, 235, "privacy budget", "middle strong"),
        arrow((places[2] + 75, 212), (places[2] + 75, 170)),
        text(places[2] - 12, 235, "charged before the noise is drawn", "end soft"),
        text(720, 235, "a certified (ε, δ) for all texts together", "middle soft"),
        *(arrow((left + 150, 114), (right - 3, 114)) for left, right in pairwise(places)),
    ]
    return whole(
        276,
        "The data's way",
        "The words of the private records are counted on your machine, exact noise is added, and the noisy count is "
        "released, after the privacy budget was charged. A model writes demonstrations from the count. They have a "
        "certified guarantee, and may be used in prompts of any model.",
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
            parts.append(text(left + 92, y + 22, "not counted" if gone else ticket, "soft" if gone else ""))
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
        "Two data sets that are equal but for one record. In the second the record is not counted. Every set of "
        "demonstrations has nearly the same probability from both: at most e to the epsilon times, plus delta.",
        parts,
    )


def noise() -> str:
    """The share of records with each word, and the noise on it at three ε."""
    parts = [text(20, 30, f"{RECORDS} messages: which share has …", "strong large"), *legend()]
    for number, epsilon in enumerate((None, *EPSILONS)):
        parts += panel(96 + 204 * number, epsilon)
    parts += [text(84, 92 + 36 * number + 17, word, "end") for number, word in enumerate(SHARES)]
    return whole(
        284,
        "What noise does to a count of words",
        "Bars: the share of 200 records that have each of five words; one record alone has the last, Hollis. Lines: two "
        f"standard deviations of the noise at epsilon {', '.join(f'{each:g}' for each in EPSILONS)}. Solid bars stand "
        f"out of the noise by {CLEAR:g} deviations and are used; Hollis never does.",
        parts,
    )


def legend() -> Iterator[str]:
    """What a bar and a line mean."""
    yield rectangle(436, 18, 22, 14, "bar", corner=2)
    yield text(464, 30, "used", "soft")
    yield rectangle(516, 18, 22, 14, "box", corner=2)
    yield text(544, 30, "dropped as noise", "soft")
    yield '  <path class="mark" d="M672 25H702"/>'
    yield text(710, 30, "two deviations of the noise", "soft")


def panel(left: float, epsilon: float | None) -> Iterator[str]:
    """A bar for each word, with its noise; a share of 1 is 150 wide."""
    deviation = 0.0 if epsilon is None else noise_on_share(epsilon)
    yield text(left, 74, "no noise: not released" if epsilon is None else f"ε = {epsilon:g}", "strong")
    for number, share in enumerate(SHARES.values()):
        y = 92 + 36 * number
        used = epsilon is None or share > CLEAR * deviation
        yield rectangle(left, y, max(1.5, 150 * share), 22, "bar" if used else "box", corner=2)
        if epsilon is None:
            yield text(left + 150 * share + 8, y + 16, f"{share:.1%}", "soft")
            continue
        low, high = max(0.0, share - 2 * deviation), share + 2 * deviation
        yield f'  <path class="mark" d="M{left + 150 * low:.1f} {y + 11}H{left + 150 * high:.1f}"/>'


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
