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
from bench.peers.accuracy import AMIN, EPSILONS, TASKS
from bench.peers.figures import PEERS, ahead, compared, group
from bench.peers.figures import cells as peer_cells
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
COLUMNS = (*((task, WRITER) for task in NAMES), ("trec", USER), ("mit-d", USER))
"""Tasks, each with the model that labels the texts."""

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
        tokens: its name in the table of agreement, which has the tokens that a model reads.
        fails: what fails, as docs/comparison.md has it.
    """

    name: str
    fails: str
    claim: str = ""
    condition: str = ""
    tokens: str = ""


OTHERS = (
    Peer(
        "Tang et al., their code",
        "draws from a seed that everybody knows",
        "Tang et al.",
        "gaussian",
        "Tang et al., as published",
    ),
    Peer(
        "AdaDPSyn, its code",
        "the same seed for every token: anyone can subtract the noise",
        "AdaDPSyn",
        "adadpsyn",
        "AdaDPSyn, as published",
    ),
    Peer(
        "LlamaIndex pack",
        "cannot be imported with the newest core; empty text from llama-server",
        "LlamaIndex pack",
    ),
    Peer(
        "InvisibleInk, `invink`",
        "a syntax error on Python 3.11; mended, one seed for all calls",
        "InvisibleInk (invink)",
    ),
    Peer(
        "private prediction (Amin et al.)",
        "a paper without code; ours of it",
        "Amin et al.",
        AMIN,
    ),
    Peer(
        "Private Evolution",
        "a paper's method, ours of it; its TREC texts are no questions",
        condition="private-evolution",
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
        for task, model in COLUMNS:
            pair = found(task, model, OURS[task], 1.0), found(task, model, condition[task], epsilon)
            if not all(pair):
                shown.append("–")
                continue
            one = difference(*pair, calibration=CALIBRATION[model])
            shown.append(f"{100 * one.mean:+.1f} {span(one.low, one.high, '+')}")
        return shown

    bare = dict.fromkeys(NAMES, ZERO_SHOT)
    head = [NAMES[task] + ", Qwen" * (model == USER) for task, model in COLUMNS]
    rows = [
        [name, shown, *(accuracy(found(*each, condition[each[0]], epsilon)) for each in COLUMNS)]
        for name, shown, condition, epsilon in ROWS
    ]
    gains = less(bare, 0.0)
    rows.append(["ε = 1 less no demonstrations", "", *gains])
    unread = less(NOTHING_READ, 0.0)
    rows.append(["ε = 1 less without records", "", *unread])
    rows.append(["ε = 1 less without noise", "", *less(OURS, None)])
    first_three = [(bare, 0.0), (NOTHING_READ, 0.0), (OURS, 1.0)]

    def alone(task: str) -> str:
        """The first three rows with one text at a time."""
        shares = [
            summarise(found(task, WRITER, one[task], epsilon), calibration="contextual")[0].accuracy
            for one, epsilon in first_three
        ]
        return " / ".join(f"{100 * share:.1f}" for share in shares)

    together = [name for name, (_, model) in zip(head, COLUMNS, strict=True) if CALIBRATION[model] == "batch"]
    together = [name for name in together if not name.startswith("MIT")]  # what is extracted has no labels
    return [
        *table(["demonstrations", "ε", *head], rows),
        "",
        (
            f"Beyond its interval, ε = 1 is better than no demonstrations on {', '.join(beyond(head, gains))}, and better than texts "
            f"written without records on {', '.join(beyond(head, unread))}."
        ),
        (
            f"{', '.join(together)} are labelled with all test texts at hand (batch calibration), the others one at a time. With contextual calibration, one at "
            f"a time, the first three rows are {alone('trec')} on TREC and {alone('agnews')} on AG News."
        ),
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
    rows_read = [[cell.strip() for cell in row.split("|")] for row in tables.agreement()]
    read = {row[2]: row[3] for row in rows_read if row[1] == "TREC"}
    ours = max(cell.epsilon or 0.0 for cell in certified)
    rows = [
        [
            "**dpfewshot**",
            "1",
            tables.rounded_up(ours),
            "",
            read["dpfewshot's default, one draw a demonstration"],
            "needs a model of your own that gives next-token probabilities",
        ],
        *(
            [
                peer.name,
                *stated(claims.get(peer.claim)),
                points(cells, peer.condition),
                read.get(peer.tokens, "–"),
                peer.fails,
            ]
            for peer in OTHERS
        ),
    ]
    names = " / ".join(NAMES[task] for task in TASKS)
    head = [
        "",
        "ε stated",
        "ε as it runs",
        f"accuracy less ours: {names}",
        "tokens read a token",
        "what fails",
    ]
    leading, measured = tables.leads(cells)
    whole = len(TASKS) * len(PEERS) * len(EPSILONS)
    found = f"{len(leading)} of {measured} comparisons; {whole - measured} are not measured yet"
    return [
        *table(head, rows),
        "",
        f"At equal ε, at ε = 1 and 4, a peer is more accurate beyond the spread in {found}.",
    ]


def stated(claim: raw.Line | None) -> list[str]:
    """The ε that a peer states, and the certified one of what runs."""
    if claim is None:
        return ["–", "–"]
    return [
        tables.rounded_up(claim["stated"]),
        "none" if claim["as_run"] is None else tables.rounded_up(claim["as_run"]),
    ]


def points(cells: Sequence[Cell], condition: str) -> str:
    """Its accuracy less ours at ε = 1, bold beyond the spread."""
    shown = []
    for task in TASKS:
        peer, ours = (group(cells, task, each, 1.0) for each in (condition, OURS[task]))
        if not peer:
            shown.append("–")
            continue
        one = compared(ours, peer, task)
        bold = "**" * (ahead(one) or one.high < 0)
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
