"""Makes README.md's figures anew from the raw rows: `python -m bench.readme`.

`docs/accuracy.svg` is a picture of accuracies. A passage stands between the comments `<!-- texts -->`, `<!-- accuracy -->`
or `<!-- peers -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache

from bench.pages import (
    CALIBRATION,
    NOTHING_READ,
    OURS,
    WRITER,
    Lines,
    Table,
    cells,
    difference,
    table,
    write,
)
from bench.peers import page as comparison
from bench.peers.page import BLUE, GREY, text, whole
from bench.texts import TEXTS
from bench.utility import ROOT, SHOTS, ZERO_SHOT
from dpfewshot.evaluation import Cell, summarise
from dpfewshot.evaluation.conditions import NON_PRIVATE_SAMPLE
from dpfewshot.evaluation.summaries import Summary, grouped
from dpfewshot.runtime.files import write_whole

README = ROOT / "README.md"
PICTURE = ROOT / "docs/accuracy.svg"

NAMES = {"trec": "TREC", "agnews": "AG News", "mit-d": "MIT-D", "mit-g": "MIT-G", "dbpedia": "DBPedia"}
LABELS = {
    "trec": "kind of question",
    "agnews": "topic of news",
    "mit-d": "director named",
    "mit-g": "genre named",
    "dbpedia": "topic of entry",
}
"""What a task's labels are."""

TIMED = ("trec", "agnews")
"""Tasks with measurements of seconds."""

ROWS = (
    ("no demonstrations", dict.fromkeys(NAMES, ZERO_SHOT), 0.0),
    ("ε = 0, no record read", NOTHING_READ, 0.0),
    ("dpfewshot, ε = 1", OURS, 1.0),
    ("dpfewshot, ε = 4", OURS, 4.0),
    ("four real records", dict.fromkeys(NAMES, NON_PRIVATE_SAMPLE), None),
)
"""The name, the condition of each task, and its ε."""


def texts() -> Lines:
    """The texts of all topics at each ε, the topics with the most records first."""
    rows = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    topics = {row["topic"]: row["units"] for row in rows}
    found = {(row["topic"], row["epsilon"]): row["text"] for row in rows}
    return table(
        "topic | records | no record read (ε = 0) | ε = 1 | ε = 4",
        [
            (topic, topics[topic], *(found[topic, epsilon] for epsilon in (0, 1, 4)))
            for topic in sorted(topics, key=topics.__getitem__, reverse=True)
        ],
    )


@cache
def groups() -> dict[tuple[str, str, float | None], list[Cell]]:
    """The cells of Gemma's demonstrations that Gemma uses, by task, condition and ε."""
    chosen = (cell for cell in cells() if cell.shots in (0, SHOTS) and cell.writer == cell.model == WRITER)
    return {(one[0].task, one[0].condition, one[0].epsilon_asked): one for one in grouped(chosen)}


def summary(task: str, condition: str, epsilon: float | None) -> Summary:
    """The accuracy of a condition with its interval."""
    (one,) = summarise(groups()[task, condition, epsilon], calibration=CALIBRATION[WRITER])
    return one


# The picture

PANEL, LEFT, TOP, ROW = 118, 160, 62, 26


def picture() -> str:
    """A panel a task, a row a condition: a dot with its 95 % interval, and the per cent."""
    parts = [
        text(
            8,
            18,
            "Accuracy of Gemma 3 270M on 200 test texts, in per cent, with 95 % intervals",
            weight="bold",
        )
    ]
    for row, (name, _, _) in enumerate(ROWS):
        parts.append(text(8, TOP + ROW * row + 17, name, weight="bold" if OURS in ROWS[row] else "normal"))
    for number, task in enumerate(NAMES):
        parts += panel(LEFT + PANEL * number, task)
    return whole(TOP + ROW * len(ROWS) + 10, parts)


def panel(left: int, task: str) -> Iterator[str]:
    """One task, on an axis from 0 to 100 %."""
    wide, bottom = 82, TOP + ROW * len(ROWS)
    yield text(left, 42, NAMES[task], weight="bold")
    yield text(left, 57, LABELS[task])
    for mark in (0, 50, 100):
        x = left + wide * mark / 100
        yield f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{TOP}" y2="{bottom}" stroke="{GREY}" opacity="0.3"/>'
    for row, (_, condition, epsilon) in enumerate(ROWS):
        one, y = summary(task, condition[task], epsilon), TOP + ROW * row + 13
        colour = BLUE if condition is OURS else GREY
        low, mean, high = (left + wide * value for value in (one.low, one.accuracy, one.high))
        yield f'<line x1="{low:.0f}" x2="{high:.0f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        yield f'<circle cx="{mean:.0f}" cy="{y}" r="4" fill="{colour}"/>'
        yield text(left + wide + 5, y + 4, f"{100 * one.accuracy:.0f}")


# The passages


def accuracy() -> Lines:
    """What the picture shows beyond its intervals: differences item by item."""
    bare = dict.fromkeys(NAMES, ZERO_SHOT)
    return [
        (
            f"ε = 1 is significantly (95 %) better than no demonstrations on {', '.join(better(bare))}, and than ε = 0 on "
            f"{', '.join(better(NOTHING_READ))}. ε is for all four demonstrations together."
        )
    ]


def better(condition: dict[str, str]) -> Iterator[str]:
    """The tasks on which ours at ε = 1 is better than a condition at ε = 0, with the whole interval."""
    for task, name in NAMES.items():
        pair = groups()[task, OURS[task], 1.0], groups()[task, condition[task], 0.0]
        if math.floor(100 * difference(*pair, calibration=CALIBRATION[WRITER]).low) > 0:
            yield name


def peers() -> Lines:
    """Accuracy, stated ε and seconds beside the peers."""
    leading, behind, measured = comparison.leads()
    claims = {line["peer"]: line["as_run"] for line in reversed(comparison.lines("claim"))}
    none = [name for name, as_run in claims.items() if as_run is None]
    return [
        (
            f"- **Accuracy** at equal certified ε: of {measured} comparisons we won {behind}, lost {len(leading) or 'none'}; the others show no "
            f"significant (95 %) difference. On MIT-G, not among them, Tang et al. are 8 to 10 points ahead from ε = 2."
        ),
        (
            f"- **Stated ε = 1**: with its default seed, Tang et al.'s code certifies to {comparison.rounded_up(claims['Tang et al.'])}; "
            f"{' and '.join(none)} to none."
        ),
        (
            f"- **Times our seconds** on {' / '.join(NAMES[task] for task in TIMED)}: Tang et al. {seconds(comparison.TANG_WAY)}, "
            f"Private Evolution {seconds(comparison.EVOLUTION_WAY)}, invink {seconds(comparison.INK_WAY)}."
        ),
    ]


def seconds(way: str) -> str:
    """The median of a peer's seconds a demonstration, in those of ours."""
    return " / ".join(f"{comparison.ratios(task, way).median:.1f}" for task in TIMED)


TABLES: dict[str, Table] = {"texts": texts, "accuracy": accuracy, "peers": peers}

if __name__ == "__main__":
    write(README, TABLES)
    write_whole(PICTURE, picture())
