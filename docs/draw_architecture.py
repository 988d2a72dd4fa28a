"""Draws docs/architecture.svg from the imports of the package.

    python docs/draw_architecture.py          # writes docs/architecture.svg

The layers come from setup.cfg, the arrows from the source. An arrow that follows from others is left out:
where A sees B and B sees C, A may see C too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from configparser import ConfigParser
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGE = "dpfewshot"
CORE = "_core (csrc/)"

STEPS = {
    "draw": ("records", "sampling"),
    "ask": ("prompts", "backends"),
    "noise": ("mechanisms",),
    "price": ("accounting",),
    "pay": ("account",),
    "decide": ("planning",),
    "run": ("generation", "synthesizer"),
    "write": ("writing",),
}
"""Each step of the way, and the rooms that do it."""

WAY = (
    ("records", "draw"),
    ("sampling", "draw"),
    ("prompts", "ask"),
    ("backends", "ask"),
    ("mechanisms", "noise"),
    ("token", "run"),
    ("demonstrations", ""),
)
"""The way of the data, and the step that each station belongs to."""

ALIASES = ("solving", "__main__")
"""Modules that hold nothing but another room's names, or call it."""

WIDTH, BOX_HEIGHT, ROW, TOP, GAP = 1000.0, 30.0, 58.0, 200.0, 22.0
STYLE = """
    svg { --page: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #8c959f; --band: #f6f8fa; --box: #e9edf1; --edge: #c4cbd3;
      --draw: #cfe5ff; --ask: #d3f0d3; --noise: #ffd9c2; --price: #e8dcff; --pay: #ffe9a8; --decide: #c9eef0;
      --run: #ffd6e7; --write: #e6edc8; }
    @media (prefers-color-scheme: dark) {
      svg { --page: #0d1117; --ink: #f0f6fc; --soft: #9da7b3; --line: #768390; --band: #151b23; --box: #262c36; --edge: #444c56;
        --draw: #123a63; --ask: #1b4721; --noise: #6b2f10; --price: #43307a; --pay: #5c4708; --decide: #0f4a4f;
        --run: #692245; --write: #46511b; }
    }
    .page { fill: var(--page); } .band { fill: var(--band); }
    text { font-family: system-ui, sans-serif; font-size: 14.5px; fill: var(--ink); text-anchor: middle; }
    .small { font-size: 13px; fill: var(--soft); }
    .title { font-size: 17px; font-weight: 600; text-anchor: start; }
    .note { font-size: 13px; fill: var(--soft); text-anchor: start; }
    rect.box { stroke: var(--edge); fill: var(--box); }
    path { fill: none; stroke: var(--line); stroke-width: 1.2; }
    path.way { stroke: var(--ink); stroke-width: 2; }
    marker path { fill: var(--line); stroke: none; }
    marker#way path { fill: var(--ink); }
    .draw { fill: var(--draw) !important; } .ask { fill: var(--ask) !important; }
    .noise { fill: var(--noise) !important; } .price { fill: var(--price) !important; }
    .pay { fill: var(--pay) !important; } .decide { fill: var(--decide) !important; }
    .run { fill: var(--run) !important; } .write { fill: var(--write) !important; }
"""


def layers() -> list[list[str]]:
    """The rooms of each layer, from the top, as setup.cfg states them; the compiled core is below all."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    stated = config["importlinter:contract:layers"]["layers"].strip().splitlines()
    rooms = [
        [room.strip().removeprefix(f"{PACKAGE}.") for room in each.replace("|", ":").split(":")]
        for each in stated
    ]
    return [*([room for room in row if room not in ALIASES] for row in rooms), [CORE]]


def imports() -> dict[str, set[str]]:
    """Which rooms a room imports, without what only type checkers read."""
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    sees: dict[str, set[str]] = {}
    for importer in graph.modules - {PACKAGE}:
        for imported in graph.find_modules_directly_imported_by(importer):
            details = graph.get_import_details(importer=importer, imported=imported)
            if imported != PACKAGE:
                target = imported.split(".")[1]
            elif any("_core" in detail["line_contents"] for detail in details):
                target = CORE  # grimp takes the compiled module for the package
            else:
                continue
            if (room := importer.split(".")[1]) != target and room not in ALIASES:
                sees.setdefault(room, set()).add(target)
    return sees


def arrows(sees: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that do not follow from others."""

    def reached(rooms: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for room in rooms:
            found |= {room} | reached(sees.get(room, ()))
        return found

    return sorted((a, b) for a, seen in sees.items() for b in seen if b not in reached(seen - {b}))


class Node:
    """A room, or a bend of an arrow that passes a layer."""

    def __init__(self, name: str, width: float) -> None:
        self.name = name
        self.width = width
        self.x = 0.0
        self.above: list[Node] = []
        self.below: list[Node] = []


def placed(
    rows: Sequence[Sequence[str]], links: Iterable[tuple[str, str]]
) -> tuple[list[list[Node]], list[list[Node]]]:
    """Every layer's nodes with their places, and the nodes that each arrow passes."""
    nodes = {room: Node(room, 26 + 8.2 * len(room)) for row in rows for room in row}
    level = {room: number for number, row in enumerate(rows) for room in row}
    grid = [[nodes[room] for room in row] for row in rows]
    ways: list[list[Node]] = []
    for first, last in links:
        bends = [Node("", 8) for _ in range(level[first] + 1, level[last])]
        for number, bend in enumerate(bends, start=level[first] + 1):
            grid[number].append(bend)
        way = [nodes[first], *bends, nodes[last]]
        for upper, lower in pairwise(way):
            upper.below.append(lower)
            lower.above.append(upper)
        ways.append(way)
    for row in grid:
        _put(row, lambda node: node.x)
    for turn in range(24):
        down = turn % 2 == 0
        for row in grid if down else reversed(grid):
            _put(
                row,
                (lambda node: _mean(node, node.above)) if down else (lambda node: _mean(node, node.below)),
            )
    for row in grid:
        _put(row, lambda node: _mean(node, [*node.above, *node.below]))
    return grid, ways


def _mean(node: Node, others: Sequence[Node]) -> float:
    return fmean(other.x for other in others) if others else node.x


def _put(row: list[Node], wanted: Callable[[Node], float]) -> None:
    """Sort a layer by the places wanted and give each node the nearest free one (least squares)."""
    goal = {node: wanted(node) for node in row}
    row.sort(key=lambda node: goal[node])
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + GAP)
    groups: list[list[float]] = []
    for node, offset in zip(row, offsets, strict=True):
        groups.append([goal[node] - offset])
        while len(groups) > 1 and fmean(groups[-2]) >= fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    starts = [fmean(group) for group in groups for _ in group]
    least = 16 + row[0].width / 2
    most = WIDTH - 16 - row[-1].width / 2 - offsets[-1]
    for node, start, offset in zip(row, starts, offsets, strict=True):
        node.x = min(max(start, least), most) + offset


def _step_of(room: str) -> str:
    return next((step for step, rooms in STEPS.items() if room in rooms), "")


def _box(x: float, y: float, width: float, name: str, step: str) -> str:
    return (
        f'  <rect class="box {step}" x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{BOX_HEIGHT:.0f}" rx="6"/>\n  <text x="{x:.1f}" y="{y + 20:.1f}">{escape(name)}</text>'
    )


def _curve(way: Sequence[Node], level: dict[Node, int]) -> str:
    places = [(node.x, TOP + ROW * level[node]) for node in way]
    if level[way[0]] == level[way[-1]]:  # within a layer: below the boxes
        (x, y), (to_x, _), low = *places, places[0][1] + BOX_HEIGHT
        return f'  <path d="M{x:.1f} {low:.1f}C{x:.1f} {low + 18:.1f} {to_x:.1f} {low + 18:.1f} {to_x:.1f} {low + 3:.1f}" marker-end="url(#tip)"/>'
    pieces = [f"M{places[0][0]:.1f} {places[0][1] + BOX_HEIGHT:.1f}"]
    for number, ((x, y), (to_x, to_y)) in enumerate(pairwise(places), start=1):
        start, end = y + BOX_HEIGHT, to_y - (3 if number == len(places) - 1 else 0)
        half = (start + end) / 2
        pieces.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {end:.1f}")
        if number < len(places) - 1:
            pieces.append(f"V{to_y + BOX_HEIGHT:.1f}")
    return f'  <path d="{"".join(pieces)}" marker-end="url(#tip)"/>'


def _way_of_the_data() -> list[str]:
    lines = ['  <text class="title" x="16" y="30">The way of the data</text>']
    step = (WIDTH - 32) / len(WAY)
    for number, (name, verb) in enumerate(WAY):
        x = 16 + step * (number + 0.5)
        lines.append(_box(x, 48, step - 22, name, verb))
        if number:
            lines.append(
                f'  <path class="way" d="M{x - step / 2 - 10:.1f} 63H{x - step / 2 + 9:.1f}" marker-end="url(#way)"/>'
            )
    before, noise, after = (16 + step * (place + 0.5) for place in (1.5, 4, 5.5))
    lines += [
        f'  <text class="small" x="{before:.1f}" y="98">private, in memory only</text>',
        f'  <text class="small" x="{noise:.1f}" y="98">the only release</text>',
        f'  <text class="small" x="{after:.1f}" y="98">public</text>',
        f'  <path class="way" d="M{noise:.1f} 122V106" marker-end="url(#way)"/>',
        f'  <text class="small" x="{noise:.1f}" y="138">charged before each draw: planning, accounting, account</text>',
    ]
    legend = 92.0
    lines.append(f'  <text class="title" x="16" y="{TOP - 30:.0f}">The imports, layer by layer</text>')
    for number, verb in enumerate(STEPS):
        x = 300 + legend * number
        lines.append(
            f'  <rect class="box {verb}" x="{x:.0f}" y="{TOP - 44:.0f}" width="16" height="16" rx="4"/>'
        )
        lines.append(f'  <text class="note" x="{x + 22:.0f}" y="{TOP - 31:.0f}">{verb}</text>')
    return lines


def _description(links: Iterable[tuple[str, str]]) -> str:
    sees: dict[str, list[str]] = {}
    for room, other in links:
        sees.setdefault(room, []).append(other)
    imports = "; ".join(f"{room} imports {', '.join(others)}" for room, others in sees.items())
    way = ", ".join(name for name, _ in WAY)
    return (
        f"Data goes one way: {way}. The mechanism is the only release, and each draw is charged before it. "
        f"Imports go down, from layer to layer: {imports}."
    )


def picture() -> str:
    """The SVG: the way of the data above, the rooms and their imports below."""
    rows = layers()
    links = arrows(imports())
    grid, ways = placed(rows, links)
    level = {node: number for number, row in enumerate(grid) for node in row}
    height = TOP + ROW * (len(rows) - 1) + BOX_HEIGHT + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-labelledby="title desc">',
        '  <title id="title">The rooms of dpfewshot and what they import</title>',
        f'  <desc id="desc">{escape(_description(links))}</desc>',
        f"  <style>{STYLE}  </style>",
        "  <defs>",
        *(
            f'    <marker id="{name}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
            for name in ("tip", "way")
        ),
        "  </defs>",
        f'  <rect class="page" width="{WIDTH:.0f}" height="{height:.0f}" rx="8"/>',
        *(
            f'  <rect class="band" x="8" y="{TOP + ROW * number - 14:.0f}" width="{WIDTH - 16:.0f}" height="{ROW:.0f}"/>'
            for number in range(0, len(rows), 2)
        ),
        *_way_of_the_data(),
        *(_curve(way, level) for way in ways),
        *(
            _box(node.x, TOP + ROW * number, node.width, node.name, _step_of(node.name))
            for number, row in enumerate(grid)
            for node in row
            if node.name
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
