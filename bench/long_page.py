"""docs/results/long.md from the raw figures: `python -m bench.long_page > docs/results/long.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.long import LIMITS, PARTS, RAW
from bench.notes import NOTES_PER_LABEL

HEAD = Path(__file__).with_name("long.md")
MODELS = {
    "qwen2.5-coder-1.5b-instruct-q4_k_m": "Qwen2.5-Coder 1.5B",
    "gemma-3-270m-q4_k_m": "Gemma 3 270M",
    "SmolLM2-135M-Instruct.Q4_1": "SmolLM2-135M",
}

_SOURCE = re.compile(r"^(.+)\.(\d+)\.(\d+)\.\d+(\.form)?(?:\.ngram(\d+))?$")
_FORM = ", the headings in the instruction"
_RULE = ", no_repeat_ngram_size = {}"
Line = dict[str, Any]


def main() -> None:
    """Print the page."""
    print(page())


def page() -> str:
    """The page without its last line end."""
    lines = [json.loads(line) for line in RAW.read_text(encoding="utf-8").splitlines()]
    kinds = {
        kind: [one for one in lines if one["kind"] == kind] for kind in ("plan", "text", "agreement", "gaps")
    }
    parts = (_texts(kinds["text"]), _plans(kinds["plan"]), _blocks(kinds["plan"]))
    borne = (_borne(kinds["agreement"]), _positions(kinds["agreement"]), _gaps(kinds["gaps"]))
    head = HEAD.read_text(encoding="utf-8").rstrip()
    return "\n\n".join((head, *("\n".join(part) for part in (*parts, *borne))))


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    heads = list(heads)
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(str(each) for each in row)} |".replace("| --- ", "|---").replace(
            "--- |", "---|"
        )


def _texts(lines: list[Line]) -> Iterator[str]:
    yield "## The texts\n"
    yield from _table(
        (
            "writer",
            "T",
            "ε",
            "headings asked for",
            "no repeated n-gram",
            "M",
            "R",
            "mechanism",
            "noise on the mean",
            "tokens written",
            "model tokens, planned at most",
            "evaluated",
            "for each written",
            "processor seconds",
            "as without noise",
            "out of place",
            "repeated",
        ),
        (
            (
                MODELS[one["model"]],
                one["tokens"],
                f"{one['epsilon']:g}",
                "yes" if one["form"] else "–",
                one.get("ngram") or "–",
                one["prompts"],
                one["every"],
                one["mechanism"],
                f"{one['noise']:.3f}",
                one["released"],
                f"{one['planned_tokens']:,}",
                f"{one['evaluated']:,}",
                f"{one['evaluated'] / one['released']:.0f}",
                f"{one['processor_seconds']:,}",
                f"{one['agreed'] / one['released']:.0%}",
                one["misplaced"],
                f"{_repeated(one['text']):.0%}",
            )
            for one in lines
        ),
    )
    for one in lines:
        way = _FORM * one["form"] + (_RULE.format(size) if (size := one.get("ngram")) else "")
        yield f"\n{MODELS[one['model']]}, T = {one['tokens']}, ε = {one['epsilon']:g}, M = {one['prompts']}{way}:\n"
        yield "\n".join(f"> {line}<br>" for line in one["text"].splitlines())


def _repeated(text: str) -> float:
    """The share of the runs of four words that stood in the text before."""
    words = text.split()
    runs = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return 1 - len(set(runs)) / len(runs)


def _plans(lines: list[Line]) -> Iterator[str]:
    yield "## Noise on the mean of the planned settings\n"
    yield from _table(
        ("T", "ε", "records", *(f"{limit:,} model tokens" for limit in LIMITS)),
        (
            (
                tokens,
                f"{epsilon:g}",
                f"{records:,}",
                *(_cell(lines, records, tokens, epsilon, limit) for limit in LIMITS),
            )
            for tokens, epsilon, records in sorted(
                {(one["tokens"], one["epsilon"], one["records"]) for one in lines}
            )
        ),
    )


def _cell(lines: list[Line], records: int, tokens: int, epsilon: float, limit: int) -> str:
    (one,) = (
        one
        for one in lines
        if (one["records"], one["tokens"], one["epsilon"], one["limit"], one["every"])
        == (records, tokens, epsilon, limit, tokens)
    )
    return f"{one['noise']:.2f} (M = {one['prompts']})"


def _blocks(lines: list[Line]) -> Iterator[str]:
    yield f"## Draws of a text: noise for equal work, n = {NOTES_PER_LABEL:,}\n"
    options: dict[tuple[int, float, int], list[Line]] = {}
    for one in lines:
        if one["records"] == NOTES_PER_LABEL and one["limit"] in LIMITS[1::2]:
            options.setdefault((one["tokens"], one["epsilon"], one["limit"]), []).append(one)
    yield from _table(
        ("T", "ε", "model tokens", "one draw", "4 draws", "about 16 draws"),
        (
            (tokens, f"{epsilon:g}", f"{limit:,}", *_noises(found))
            for (tokens, epsilon, limit), found in options.items()
        ),
    )


def _noises(found: list[Line]) -> list[str]:
    noises = [f"{one['noise']:.2f} (M = {one['prompts']})" for one in found]
    return [*noises, *["–"] * (3 - len(noises))]


def _borne(lines: list[Line]) -> Iterator[str]:
    yield (
        "## What noise the tokens bear\n\nFor the tokens of each text, with the predictions of its own prompts: the share "
        "as without noise, and the share out of place.\n"
    )
    sources = list(dict.fromkeys(one["source"] for one in lines))
    mechanisms = list(dict.fromkeys(one["mechanism"] for one in lines))
    yield from _table(
        (
            "noise on the mean",
            *(f"{_name(source)}, {mechanism}" for source in sources for mechanism in mechanisms),
        ),
        (
            (
                noise,
                *(
                    _shares(_found(lines, source, mechanism, noise))
                    for source in sources
                    for mechanism in mechanisms
                ),
            )
            for noise in dict.fromkeys(one["noise"] for one in lines)
        ),
    )


def _found(lines: list[Line], source: str, mechanism: str, noise: float) -> Line:
    wanted = source, mechanism, noise
    return next(one for one in lines if (one["source"], one["mechanism"], one["noise"]) == wanted)


def _shares(one: Line) -> str:
    return f"{_mean(one, 'agreed'):.0%}, {_mean(one, 'misplaced'):.1%}"


def _mean(one: Line, name: str) -> float:
    weights = one["positions"]
    return float(sum(share * weight for share, weight in zip(one[name], weights, strict=True)) / sum(weights))


def _name(source: str) -> str:
    ((model, tokens, epsilon, form, ngram),) = _SOURCE.findall(source)
    ways = ", form" * bool(form) + (f", n = {ngram}" if ngram else "")
    return f"{MODELS[model]} T = {tokens}, ε = {epsilon}{ways}"


def _positions(lines: list[Line]) -> Iterator[str]:
    yield "## The same by position, at a noise of 0.1\n"
    parts = [f"{low + 1} to {high}" for low, high in PARTS]
    shown = [one for one in lines if one["noise"] == 0.1]  # noqa: PLR2004 - the planner's threshold
    yield from _table(
        ("text", "mechanism", *parts),
        ((_name(one["source"]), one["mechanism"], *_by_part(one)) for one in shown),
    )


def _by_part(one: Line) -> list[str]:
    cells = [f"{a:.0%}, {m:.1%}" for a, m in zip(one["agreed"], one["misplaced"], strict=True)]
    return [*cells, *["–"] * (len(PARTS) - len(cells))]


def _gaps(lines: list[Line]) -> Iterator[str]:
    yield "## Gaps between the likeliest token and the next\n"
    levels = (0.02, 0.05, 0.1, 0.2, 0.5)
    yield from _table(
        ("text", "tokens", *(f"below {level:g}" for level in levels)),
        (
            (
                _name(one["source"]),
                len(one["gaps"]),
                *(f"{sum(g < level for g in one['gaps']) / len(one['gaps']):.0%}" for level in levels),
            )
            for one in lines
        ),
    )


if __name__ == "__main__":
    main()
