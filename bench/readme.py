"""Makes README.md's tables anew from the raw rows: `python -m bench.readme`.

A table stands between the comments `<!-- texts -->`, `<!-- results -->` or `<!-- peers -->` and `<!-- end -->`, with the
sentences that follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from bench.pages import (
    CALIBRATION,
    NOTHING_READ,
    OURS,
    USER,
    WRITER,
    Lines,
    Table,
    cells,
    difference,
    table,
    write,
)
from bench.peers import page as comparison
from bench.utility import CERTIFIED, ROOT, SHOTS, ZERO_SHOT
from dpfewshot.evaluation import Cell, summarise
from dpfewshot.evaluation.conditions import NON_PRIVATE_SAMPLE
from dpfewshot.evaluation.summaries import grouped

README = ROOT / "README.md"
READABILITY = ROOT / "docs/results/readability.md"
SHOWN = "gemma-3-270m-q4_k_m, banking77"
"""The writer and the data set whose texts are shown."""

NAMES = {"trec": "TREC", "agnews": "AG News", "mit-d": "MIT-D", "mit-g": "MIT-G", "dbpedia": "DBPedia"}

REPEATED = 3
"""Runs of a peer that show its spread."""

TIMED = ("trec", "agnews")
"""Tasks with measurements of seconds."""

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
        comparison.TANG_WAY,
    ),
    Peer(
        "AdaDPSyn",
        "by default seed 0 for every token: who knows it can subtract the noise",
        "AdaDPSyn",
        "adadpsyn",
        comparison.ADADPSYN_WAY,
    ),
    Peer(
        "LlamaIndex pack",
        "no import with the newest core; no text from llama-server",
        "LlamaIndex pack",
        way=comparison.PACK_WAY,
    ),
    Peer(
        "`invink`",
        "a syntax error on Python 3.11; one default seed for all calls; 7 records a text",
        "InvisibleInk (invink)",
        way=comparison.INK_WAY,
    ),
    Peer("InvisibleInk's mechanism, by ours", "needs many records or a large ε", condition=comparison.INK),
    Peer(
        "Amin et al.",
        "a paper without code",
        "Amin et al.",
        comparison.AMIN,
    ),
    Peer(
        "Private Evolution",
        "in one run its TREC texts were no questions",
        condition="private-evolution",
        way=comparison.EVOLUTION_WAY,
    ),
)


def texts() -> Lines:
    """A text of one label at each ε, from docs/results/readability.md: always the same label and mechanism."""
    part = READABILITY.read_text(encoding="utf-8").partition(f"\n## {SHOWN}\n")[2].partition("\n## ")[0]
    columns = [[column.strip() for column in row.split("|")[1:-1]] for row in part.splitlines()]
    found = {(each[0], each[1]): each[-1] for each in columns if each}
    rows = [
        ["0: from the instruction alone", found["instruction-only", "–"]],
        *([f"**{each}**", f"**{found['softmax-choice', each]}**"] for each in ("1", "2", "4")),
        ["none: without noise", found["no noise", "–"]],
    ]
    return table("ε | text", rows)


@cache
def groups() -> dict[tuple[str, str, str, float | None], list[Cell]]:
    """The cells of Gemma's demonstrations by task, model, condition and ε."""
    chosen = (cell for cell in cells() if cell.shots in (0, SHOTS) and cell.writer == WRITER)
    return {
        (one[0].task, one[0].model, one[0].condition, one[0].epsilon_asked): one for one in grouped(chosen)
    }


def results() -> Lines:
    """Accuracy of four demonstrations by ε, in per cent, and what noise costs."""
    rows = [
        [name, epsilon, *(accuracy(task, WRITER, condition[task], asked) for task in NAMES)]
        for name, epsilon, condition, asked in ROWS
    ]
    bare = dict.fromkeys(NAMES, ZERO_SHOT)
    together = [
        name for name in NAMES.values() if not name.startswith("MIT")
    ]  # what is extracted has no labels
    return [
        *table(f"demonstrations | ε | {' | '.join(NAMES.values())}", rows),
        "",
        (
            f"Item by item, ε = 1 is significantly (95 %) better than no demonstrations on {', '.join(better(bare))}, and better "
            f"than texts written without records on {', '.join(better(NOTHING_READ))}."
        ),
        (
            f"{', '.join(together)} are labelled with all test texts at hand (batch calibration), the others one at a time. With contextual calibration, one at "
            f"a time, the first three rows are {alone('trec')} on TREC and {alone('agnews')} on AG News."
        ),
        f"Where Qwen2.5-Coder 1.5B labels, without demonstrations and with these at ε = 1, uncalibrated: {by_another('trec')}, {by_another('mit-d')}.",
    ]


def better(condition: dict[str, str]) -> Iterator[str]:
    """The tasks on which ours at ε = 1 is better than a condition at ε = 0, with the whole interval."""
    for task, name in NAMES.items():
        pair = groups()[task, WRITER, OURS[task], 1.0], groups()[task, WRITER, condition[task], 0.0]
        if math.floor(100 * difference(*pair, calibration=CALIBRATION[WRITER]).low) > 0:
            yield name


def alone(task: str) -> str:
    """The first three rows with one text at a time."""
    first_three = ((ZERO_SHOT, 0.0), (NOTHING_READ[task], 0.0), (OURS[task], 1.0))
    found = (summarise(groups()[task, WRITER, *each], calibration="contextual")[0] for each in first_three)
    return " / ".join(f"{100 * one.accuracy:.1f}" for one in found)


def by_another(task: str) -> str:
    """Without demonstrations, and with ours, where another model labels."""
    first, last = (accuracy(task, USER, *each) for each in ((ZERO_SHOT, 0.0), (OURS[task], 1.0)))
    return f"{first} and {last} on {NAMES[task]}"


def accuracy(task: str, model: str, condition: str, epsilon: float | None) -> str:
    """Per cent, with an interval that is rounded outwards."""
    found = groups().get((task, model, condition, epsilon))
    if found is None:
        return "–"
    (one,) = summarise(found, calibration=CALIBRATION[model])
    return f"{100 * one.accuracy:.1f} [{math.floor(100 * one.low)}, {math.ceil(100 * one.high)}]"


def peers() -> Lines:
    """What each peer states and does, at ε = 1."""
    from_code = [line for line in comparison.lines("run") if line.get("with") == "its formula"]
    first = {line["peer"]: line for line in reversed([*comparison.lines("claim"), *from_code])}
    ours = max(
        cell.epsilon or 0.0
        for cell in cells()
        if cell.writer == f"{WRITER}, {CERTIFIED}" and cell.epsilon_asked == 1.0
    )
    rows = [
        [
            "**dpfewshot**",
            "1",
            comparison.rounded_up(ours),
            "",
            "1 / 1",
            "needs next-token probabilities, so a model of your own",
        ],
        *(
            [peer.name, *stated(first.get(peer.claim)), points(peer.condition), seconds(peer.way), peer.fails]
            for peer in OTHERS
        ),
    ]
    leading, behind, measured = comparison.leads()
    whole = len(comparison.TASKS) * len(comparison.PEERS) * len(comparison.EPSILONS)
    missing = f" ({whole - measured} are not measured yet)" if measured < whole else ""
    return [
        *table("| ε stated | ε as it runs | accuracy | seconds | what fails", rows),
        "",
        (
            f"At equal ε, 1 and 4, of {measured} comparisons of accuracy on these tasks{missing} ours won {behind} and lost {len(leading) or 'none'}; the others show no significant "
            f"(95 %) difference. On MIT-G, which is not among them, Tang et al. are 8 to 10 points ahead [from ε = 2](docs/results/utility.md). At equal noise Tang et al. "
            f"take {seconds(comparison.TANG_WAY, comparison.SAME_NOISE_WAY)} times our seconds."
        ),
    ]


def seconds(way: str, ours: str = comparison.OURS_WAY) -> str:
    """The median of a peer's seconds a demonstration, in those of ours."""
    if way not in {line["peer"] for line in comparison.lines("speed")}:
        return "–"
    return " / ".join(f"{comparison.ratios(task, way, ours).median:.1f}" for task in TIMED)


def stated(claim: comparison.Line | None) -> list[str]:
    """The ε that a peer states, and the certified one of what runs."""
    if claim is None:
        return ["–", "–"]
    return [
        f"{claim['stated']:.3g}",
        "none" if claim["as_run"] is None else comparison.rounded_up(claim["as_run"]),
    ]


def points(condition: str) -> str:
    """Its accuracy less ours at ε = 1; bold if the difference is significant, of several runs."""
    shown = []
    for task in comparison.TASKS:
        one = comparison.less_ours(task, condition, 1.0)
        if one is None:
            shown.append("–")
            continue
        several = len(comparison.group(task, condition, 1.0)) >= REPEATED
        bold = "**" * (several and (comparison.ahead(one) or one.high < 0))
        shown.append(f"{bold}{100 * one.mean:+.1f}{bold}")
    return " / ".join(shown)


TABLES: dict[str, Table] = {"texts": texts, "results": results, "peers": peers}

if __name__ == "__main__":
    write(README, TABLES)
