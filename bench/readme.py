"""Writes README.md's tables from the raw results: `python -m bench.readme`.

A table stands between the comments `<!-- texts -->`, `<!-- results -->` or `<!-- peers -->` and `<!-- end -->`, with the
sentences that follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers import raw, tables
from bench.peers.accuracy import AMIN, EPSILONS, INK, TASKS
from bench.peers.figures import PEERS, ahead, compared, group, ratios
from bench.peers.figures import cells as peer_cells
from bench.peers.speed import (
    ADADPSYN_WAY,
    EVOLUTION_WAY,
    INK_WAY,
    OURS_WAY,
    PACK_WAY,
    SAME_NOISE_WAY,
    TANG_WAY,
)
from bench.utility import RAW
from bench.utility_tables import CALIBRATION, NOTHING_READ, OURS, SHOTS, USER, WRITER
from dpfewshot.evaluation import Cell, Results, difference, summarise
from dpfewshot.evaluation.conditions import NON_PRIVATE_SAMPLE
from dpfewshot.evaluation.summaries import grouped
from dpfewshot.runtime.files import write_whole

README = Path(__file__).parents[1] / "README.md"
READABILITY = RAW.parents[1] / "readability.md"
SHOWN = "gemma-3-270m-q4_k_m, banking77"
"""The writer and the data set whose texts are shown."""

NAMES = {"trec": "TREC", "agnews": "AG News", "mit-d": "MIT-D", "mit-g": "MIT-G", "dbpedia": "DBPedia"}

REPEATED = 3
"""Runs of a peer that show its spread."""

TIMED = ("trec", "agnews")
"""Tasks with measurements of seconds."""

ZERO_SHOT = "zero-shot"
ROWS = (
    ("no demonstrations", "0", dict.fromkeys(NAMES, ZERO_SHOT), 0.0),
    ("written without records", "0", NOTHING_READ, 0.0),
    ("**dpfewshot**", "**1**", OURS, 1.0),
    ("**dpfewshot**", "**4**", OURS, 4.0),
    ("the same without noise", "none", OURS, None),
    ("four real records", "none", dict.fromkeys(NAMES, NON_PRIVATE_SAMPLE), None),
)
"""The name, the ε that is shown, the condition of each task, and its ε."""


@dataclass(frozen=True)
class Peer:
    """A row of the table of peers.

    Attributes:
        claim: its name in the claims of peers.jsonl.
        condition: its name in cells of accuracy.
        way: its name in the measurements of seconds.
        fails: what fails, as docs/comparison.md has it.
    """

    name: str
    fails: str
    claim: str = ""
    condition: str = ""
    way: str = ""


OTHERS = (
    Peer(
        "Tang et al.",
        "its default seed is 0: who knows it knows which records were drawn",
        "Tang et al.",
        "gaussian",
        TANG_WAY,
    ),
    Peer(
        "AdaDPSyn",
        "by default seed 0 for every token: who knows it can subtract the noise",
        "AdaDPSyn",
        "adadpsyn",
        ADADPSYN_WAY,
    ),
    Peer(
        "LlamaIndex pack",
        "no import with the newest core; no text from llama-server",
        "LlamaIndex pack",
        way=PACK_WAY,
    ),
    Peer(
        "`invink`",
        "a syntax error on Python 3.11; one default seed for all calls; 7 records a text",
        "InvisibleInk (invink)",
        way=INK_WAY,
    ),
    Peer("InvisibleInk's mechanism, by ours", "needs many records or a large ε", condition=INK),
    Peer(
        "Amin et al.",
        "a paper without code",
        "Amin et al.",
        AMIN,
    ),
    Peer(
        "Private Evolution",
        "in one run its TREC texts were no questions",
        condition="private-evolution",
        way=EVOLUTION_WAY,
    ),
)


def texts(page: str) -> list[str]:
    """A text of one label at each ε, from docs/results/readability.md: always the same label and mechanism."""
    part = page.partition(f"\n## {SHOWN}\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in part.splitlines()]
    found = {(cell[0], cell[1]): cell[-1] for cell in cells if cell}
    rows = [
        ["0: from the instruction alone", found["instruction-only", "–"]],
        *([f"**{each}**", f"**{found['softmax-choice', each]}**"] for each in ("1", "2", "4")),
        ["none: without noise", found["no noise", "–"]],
    ]
    return table(["ε", "text"], rows)


def results(cells: Sequence[Cell]) -> list[str]:
    """Accuracy of four demonstrations by ε, in per cent, and what noise costs."""
    groups = {
        (one[0].task, one[0].model, one[0].condition, one[0].epsilon_asked): one
        for one in grouped(cell for cell in cells if cell.shots in (0, SHOTS) and cell.writer == WRITER)
    }

    def found(task: str, model: str, condition: str, epsilon: float | None) -> list[Cell]:
        return groups.get((task, model, condition, epsilon), [])

    def less(condition: dict[str, str], epsilon: float | None) -> list[str]:
        shown = []
        for task in NAMES:
            pair = found(task, WRITER, OURS[task], 1.0), found(task, WRITER, condition[task], epsilon)
            one = difference(*pair, calibration=CALIBRATION[WRITER])
            shown.append(f"{100 * one.mean:+.1f} {span(one.low, one.high, '+')}")
        return shown

    bare = dict.fromkeys(NAMES, ZERO_SHOT)
    head = list(NAMES.values())
    rows = [
        [name, shown, *(accuracy(found(task, WRITER, condition[task], epsilon)) for task in NAMES)]
        for name, shown, condition, epsilon in ROWS
    ]
    gains, unread = less(bare, 0.0), less(NOTHING_READ, 0.0)
    first_three = [(bare, 0.0), (NOTHING_READ, 0.0), (OURS, 1.0)]

    def alone(task: str) -> str:
        """The first three rows with one text at a time."""
        shares = [
            summarise(found(task, WRITER, one[task], epsilon), calibration="contextual")[0].accuracy
            for one, epsilon in first_three
        ]
        return " / ".join(f"{100 * share:.1f}" for share in shares)

    def by_another(task: str) -> str:
        """Without demonstrations, and with ours, where another model labels."""
        first, last = (found(task, USER, *each) for each in ((ZERO_SHOT, 0.0), (OURS[task], 1.0)))
        return f"{accuracy(first)} and {accuracy(last)} on {NAMES[task]}"

    together = [name for name in head if not name.startswith("MIT")]  # what is extracted has no labels
    return [
        *table(["demonstrations", "ε", *head], rows),
        "",
        (
            f"Item by item, ε = 1 is better than no demonstrations beyond the interval of the difference on {', '.join(beyond(head, gains))}, and better "
            f"than texts written without records on {', '.join(beyond(head, unread))}."
        ),
        (
            f"{', '.join(together)} are labelled with all test texts at hand (batch calibration), the others one at a time. With contextual calibration, one at "
            f"a time, the first three rows are {alone('trec')} on TREC and {alone('agnews')} on AG News."
        ),
        f"Where Qwen2.5-Coder 1.5B labels, without demonstrations and with these at ε = 1, uncalibrated: {by_another('trec')}, {by_another('mit-d')}.",
    ]


def beyond(head: Sequence[str], gains: Sequence[str]) -> list[str]:
    """The columns whose whole interval is above zero."""
    return [name for name, gain in zip(head, gains, strict=True) if "[+" in gain and "[+0" not in gain]


def accuracy(cells: Sequence[Cell]) -> str:
    """Per cent, with an interval that is rounded outwards."""
    if not cells:
        return "–"
    (one,) = summarise(cells, calibration=CALIBRATION[cells[0].model])
    return f"{100 * one.accuracy:.1f} {span(one.low, one.high)}"


def span(low: float, high: float, sign: str = "") -> str:
    """Shares as per cent, rounded outwards."""
    return f"[{math.floor(100 * low):{sign}d}, {math.ceil(100 * high):{sign}d}]"


def peers(lines: Sequence[raw.Line], cells: Sequence[Cell], certified: Iterable[Cell]) -> list[str]:
    """What each peer states and does, at ε = 1."""
    claims = {
        line["peer"]: line
        for line in reversed(lines)
        if line["kind"] == "claim" or line.get("with") == "its formula"
    }
    ours = max(cell.epsilon or 0.0 for cell in certified)
    rows = [
        [
            "**dpfewshot**",
            "1",
            tables.rounded_up(ours),
            "",
            "1 / 1",
            "needs next-token probabilities, so a model of your own",
        ],
        *(
            [
                peer.name,
                *stated(claims.get(peer.claim)),
                points(cells, peer.condition),
                seconds(lines, peer.way),
                peer.fails,
            ]
            for peer in OTHERS
        ),
    ]
    head = [
        "",
        "ε stated",
        "ε as it runs",
        "accuracy",
        "seconds",
        "what fails",
    ]
    leading, behind, measured = tables.leads(cells)
    whole = len(TASKS) * len(PEERS) * len(EPSILONS)
    found = f"{len(leading)} of {measured} comparisons"
    if measured < whole:
        found += f" ({whole - measured} are not measured yet)"
    return [
        *table(head, rows),
        "",
        (
            f"At equal ε, 1 and 4, a peer is more accurate beyond the spread in {found} on these tasks, and ours is in {behind}: the others show no difference. On MIT-G, which is not "
            f"among them, Tang et al. are 8 to 10 points ahead [from ε = 2](docs/results/utility.md). At equal noise Tang et al. take {same_noise(lines)} times our seconds."
        ),
    ]


def seconds(lines: Sequence[raw.Line], way: str) -> str:
    """The median of its seconds a demonstration, in those of ours."""
    measured = [line for line in lines if line["kind"] == "speed"]
    if way not in {line["peer"] for line in measured}:
        return "–"
    return " / ".join(f"{ratios(measured, task, way, OURS_WAY).median:.1f}" for task in TIMED)


def same_noise(lines: Sequence[raw.Line]) -> str:
    """The median of Tang et al.'s seconds in those of ours at their noise."""
    measured = [line for line in lines if line["kind"] == "speed"]
    return " / ".join(f"{ratios(measured, task, TANG_WAY, SAME_NOISE_WAY).median:.1f}" for task in TIMED)


def stated(claim: raw.Line | None) -> list[str]:
    """The ε that a peer states, and the certified one of what runs."""
    if claim is None:
        return ["–", "–"]
    return [
        f"{claim['stated']:.3g}",
        "none" if claim["as_run"] is None else tables.rounded_up(claim["as_run"]),
    ]


def points(cells: Sequence[Cell], condition: str) -> str:
    """Its accuracy less ours at ε = 1, bold beyond the spread of both."""
    shown = []
    for task in TASKS:
        peer, ours = (group(cells, task, each, 1.0) for each in (condition, OURS[task]))
        if not peer:
            shown.append("–")
            continue
        one = compared(ours, peer, task)
        bold = "**" * (len(peer) >= REPEATED and (ahead(one) or one.high < 0))
        shown.append(f"{bold}{100 * one.mean:+.1f}{bold}")
    return " / ".join(shown)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """As Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def written(text: str) -> str:
    """The README with both tables as they follow from the raw results."""
    cells = Results(RAW).cells
    certified = [
        cell for cell in cells if cell.writer == f"{WRITER}, certified" and cell.epsilon_asked == 1.0
    ]
    parts = {
        "texts": texts(READABILITY.read_text(encoding="utf-8")),
        "results": results(cells),
        "peers": peers(raw.read(), peer_cells(), certified),
    }
    for name, lines in parts.items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        after = rest.partition("<!-- end -->")[2]
        text = "\n".join([before + f"<!-- {name} -->", "", *lines, "", "<!-- end -->"]) + after
    return text


if __name__ == "__main__":
    write_whole(README, written(README.read_text(encoding="utf-8")))
