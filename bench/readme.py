"""Makes README.md's figures anew from the raw rows: `python -m bench.readme`.

`docs/accuracy.svg` is a picture of accuracies. A passage stands between the comments `<!-- texts -->`, `<!-- accuracy -->`
or `<!-- peers -->` and `<!-- end -->`. All texts stand in docs/decisions/histogram.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import fmean

import numpy as np

from bench.default import DEFAULT, MODEL, NO_RECORDS
from bench.default import NAME as OURS
from bench.pages import Lines, Table, rows, table, write
from bench.peers import page as comparison
from bench.peers.page import BLUE, GREY, text, whole
from bench.texts import TEXTS
from bench.utility import ROOT, ZERO_SHOT
from dpfewshot.evaluation import Results
from dpfewshot.evaluation.conditions import NON_PRIVATE_SAMPLE
from dpfewshot.evaluation.summaries import Outcomes, grouped, interval_of_mean, outcomes_of
from dpfewshot.runtime.files import write_whole

README = ROOT / "README.md"
READINGS = ROOT / "docs/decisions/histogram.md"
PICTURE = ROOT / "docs/accuracy.svg"

NAMES = {
    "bank messages": "banking77",
    "trec": "TREC",
    "agnews": "AG News",
    "dbpedia": "DBPedia",
    "mit-d": "MIT-D",
    "mit-g": "MIT-G",
}
LABELS = {
    "bank messages": "topic, of ten",
    "trec": "answer type",
    "agnews": "topic of news",
    "dbpedia": "kind of thing",
    "mit-d": "director",
    "mit-g": "genre",
}
"""What a task's labels are."""

SHOWN = 2
"""Topics whose texts the README shows."""

ROWS = (
    ("no demonstrations", ZERO_SHOT, 0.0),
    ("ε = 0, no record read", NO_RECORDS, 0.0),
    ("dpfewshot, ε = 1", OURS, 1.0),
    ("real records", NON_PRIVATE_SAMPLE, None),
)
"""The name, the condition and its ε."""


def all_texts() -> Lines:
    """A row a topic."""
    return table("topic | records | no record read (ε = 0) | ε = 1", found_texts())


def texts() -> Lines:
    """The first rows, without the number of records."""
    shown = [(topic, without, ours) for topic, _, without, ours in found_texts()[:SHOWN]]
    return table("topic | written without data (ε = 0) | written at ε = 1", shown)


def found_texts() -> list[tuple[str, int, str, str]]:
    """Topic, records, text at ε = 0 and at ε = 1, the topics with the most records first."""
    written = rows(TEXTS.name)
    topics = {row["topic"]: row["units"] for row in written}
    found = {(row["topic"], row["epsilon"]): row["text"] for row in written}
    ordered = sorted(topics, key=topics.__getitem__, reverse=True)
    return [(topic, topics[topic], found[topic, 0], found[topic, 1]) for topic in ordered]


@cache
def outcomes() -> dict[tuple[str, str, float | None], Outcomes]:
    """Which test texts were labelled rightly, shape (runs, texts), by task, condition and ε."""
    groups = grouped(Results(DEFAULT).cells)
    return {
        (one[0].task, one[0].condition, one[0].epsilon_asked): outcomes_of(one, "contextual")
        for one in groups
    }


# The picture

LEFT, TOP, ROW = 160, 62, 26
PANEL = (comparison.WIDTH - LEFT) // len(NAMES)


def picture() -> str:
    """A panel a task, a row a condition: a dot with its 95 % interval, and the per cent."""
    items = next(iter(outcomes().values())).shape[1]
    head = f"Accuracy of {MODEL} on {items} test texts, in per cent, with 95 % intervals over texts"
    parts = [text(8, 18, head, weight="bold")]
    for row, (name, condition, _) in enumerate(ROWS):
        parts.append(text(8, TOP + ROW * row + 17, name, weight="bold" if condition == OURS else "normal"))
    for number, task in enumerate(NAMES):
        parts += panel(LEFT + PANEL * number, task)
    return whole(TOP + ROW * len(ROWS) + 10, parts)


def panel(left: int, task: str) -> Iterator[str]:
    """One task, on an axis from 0 to 100 %."""
    wide, bottom = PANEL - 50, TOP + ROW * len(ROWS)
    yield text(left, 42, NAMES[task], weight="bold")
    yield text(left, 57, LABELS[task])
    for mark in (0, 50, 100):
        x = left + wide * mark / 100
        yield f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{TOP}" y2="{bottom}" stroke="{GREY}" opacity="0.3"/>'
    for row, (_, condition, epsilon) in enumerate(ROWS):
        by_text, y = outcomes()[task, condition, epsilon].mean(axis=0), TOP + ROW * row + 13
        colour = BLUE if condition == OURS else GREY
        least, most = interval_of_mean(by_text, [])
        low, mean, high = (left + wide * value for value in (least, by_text.mean(), most))
        yield f'<line x1="{low:.0f}" x2="{high:.0f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        yield f'<circle cx="{mean:.0f}" cy="{y}" r="4" fill="{colour}"/>'
        yield text(left + wide + 5, y + 4, f"{100 * by_text.mean():.0f}")


# The passages


def accuracy() -> Lines:
    """What the picture shows, in the mean of its tasks."""
    return [
        (
            f"On average, accuracy in labelling at ε = 1 is {gained(OURS, 1.0, ZERO_SHOT):.1f} points above no examples, and "
            f"{gained(OURS, 1.0, NO_RECORDS):.1f} above examples without data, on which real "
            f"records gain {gained(NON_PRIVATE_SAMPLE, None, NO_RECORDS):.1f}. One set of "
            f"examples may be [{spread():.0f} points](docs/decisions/histogram.md#in-use) better than another of its kind: "
            "[`choose`](docs/how-to/choose.md) tests yours, privately."
        )
    ]


def gained(condition: str, epsilon: float | None, other: str) -> float:
    """The mean accuracy of a condition less that of another one at ε = 0, in points, in the mean of the tasks."""
    means = {key: 100 * value.mean() for key, value in outcomes().items()}
    return fmean(means[task, condition, epsilon] - means[task, other, 0.0] for task in NAMES)


def spread() -> float:
    """The most by which runs of one condition and task differ in accuracy, in points."""
    return max(100 * float(np.ptp(value.mean(axis=1))) for value in outcomes().values())


def peers() -> Lines:
    """Accuracy and stated ε beside the peers."""
    leading, behind, measured = comparison.leads()
    return [
        (
            "Beside [published methods](docs/comparison.md) at equal certified ε, our token-by-token mechanism (not the "
            f"default) was better in {behind} of {measured} comparisons on three tasks (95 %), and worse in "
            f"{len(leading) or 'none'}. On a fourth, MIT-G, Tang et al. lead by 8 to 10 points from ε = 2, significantly at ε = 8."
        )
    ]


TABLES: dict[str, Table] = {"texts": texts, "accuracy": accuracy, "peers": peers}
ALL_TEXTS: dict[str, Table] = {"texts": all_texts}

if __name__ == "__main__":
    write(README, TABLES)
    write(READINGS, ALL_TEXTS)
    write_whole(PICTURE, picture())
