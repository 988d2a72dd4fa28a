"""docs/results/scale.md and its picture from the raw figures: `python -m bench.scale_page > docs/results/scale.md`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from bench.scale_fit import RAW, Fleet, Series, fit, recorded, series
from dpfewshot.planning.settings import PlanSettings
from dpfewshot.planning.speed import Lengths, Speed
from dpfewshot.report.palette import LIGHT
from dpfewshot.report.svg import HEIGHT, WIDTH, Plot, dash_of, series_class
from dpfewshot.runtime.files import write_whole

PICTURE = RAW.parents[1] / "scale.svg"
COLUMNS = 3
ALONE, BESIDE = "one process, one thread", "two processes, a thread each"
MOST_TICKS = 6
THOUSAND = 1000
SERIES = (
    "M", "length", "T", "R", "vocabulary", "labels", "labels, SQLite", "index", "open index", "group", "draw",
    "memory of n", "memory of M",
)  # fmt: skip


def main() -> None:
    """Prints the page, and writes the picture."""
    write_whole(PICTURE, picture(measured()))
    print(page())


def measured() -> list[Series]:
    """The series that have figures."""
    raw = recorded()
    return [series(name) for name in SERIES if name in raw]


def page() -> str:
    """The page without its last line end."""
    raw = recorded()
    parts = {"plans": estimates, "workers": workers, "replicas": replicas, "cost": costs}
    told = [part(raw) for name, part in parts.items() if name in raw]
    return "\n\n".join("\n".join(lines) for lines in ([*head(raw), "", *fits(measured())], *told))


def head(raw: dict[str, Any]) -> Iterator[str]:
    """What was measured, and how."""
    yield Path(__file__).with_name("scale.md").read_text(encoding="utf-8").rstrip()
    yield ""
    loads = {
        name.removeprefix("load before "): load for name, load in raw.items() if name.startswith("load ")
    }
    yield f"Load average when each part began: {', '.join(f'{name} {load:.0f}' for name, load in loads.items())}."


def fits(shown: list[Series]) -> Iterator[str]:
    """Every series with its line."""
    yield "## Against each variable\n"
    yield "![Each quantity against its variable, with the fitted line](scale.svg)\n"
    yield "| quantity | variable | from | to | line | at most off by | power | what stays |\n|---|---|---|---|---|---|---|---|"
    for one in shown:
        line, points = fit(one.medians), one.medians
        yield (
            f"| {one.name} | {one.variable} | {short(points[0][0])}: {short(points[0][1])} {one.unit} | {short(points[-1][0])}: "
            f"{short(points[-1][1])} {one.unit} | {short(line.fixed)} + {short(line.slope)}·x | {line.spread:.2f} times | "
            f"{line.power:.2f} | {one.setup} |"
        )

    yield ""
    yield Path(__file__).with_name("scale_remarks.md").read_text(encoding="utf-8").rstrip()


def estimates(raw: dict[str, Any]) -> Iterator[str]:
    """Plans beside what they took."""
    found = raw["plans"]
    yield f"## What `plan` says, and what a run takes\n\n{found['backend']}; a probe of {found['probe seconds']:.0f} s; processor seconds.\n"
    yield "| run | M | T | R | cap | tokens made | estimated, s | took, s | took / estimated | took / estimated for these texts |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for run in found["runs"]:
        yield (
            f"| {run['run']} | {run['M']} | {run['T']} | {run['R']} | {run['cap']} | {', '.join(map(str, run['tokens']))} | "
            f"{run['estimated']:.1f} | {run['took']:.1f} | {run['took'] / run['estimated']:.2f} | "
            f"{run['took'] / run['estimated for these texts']:.2f} |"
        )


def workers(raw: dict[str, Any]) -> Iterator[str]:
    """Two processes against one."""
    yield f"## Workers\n\nThe packaged model, two labels, SQLite; the ways took turns, {len(raw['workers'][ALONE])} rounds. The last two columns are times one process with one thread.\n"
    yield "| | seconds a token | processor seconds a token | tokens a second | tokens a processor second |"
    yield "|---|---|---|---|---|"
    for name, took in raw["workers"].items():
        wall, processor = (statistics.median(each) for each in zip(*took, strict=True))
        gains = [
            [one / each for one, each in zip(*pair, strict=True)]
            for pair in zip(zip(*raw["workers"][ALONE], strict=True), zip(*took, strict=True), strict=True)
        ]
        yield f"| {name} | {wall:.3f} | {processor:.3f} | " + " | ".join(map(spread, gains)) + " |"


def spread(ratios: Sequence[float]) -> str:
    """The median, with the least and the most."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def replicas(raw: dict[str, Any]) -> Iterator[str]:
    """Real servers."""
    yield "## Replicas of a server\n"
    yield from raw["replicas"]


def costs(raw: dict[str, Any]) -> Iterator[str]:
    """1,000 labels and 10 million records."""
    speed = Speed(**raw["cost"]["speed"])
    settings, lengths = PlanSettings(**raw["cost"]["settings"]), Lengths(**raw["cost"]["lengths"])
    labels, n = 1000, 10_000_000
    index, group = (fit(series(name).medians)(n) for name in ("index", "group"))
    own = fit(series("labels, SQLite").medians)(labels)
    alone, beside = (
        statistics.median(processor for _, processor in raw["workers"][name]) for name in (ALONE, BESIDE)
    )
    share = min(1.0, alone / beside)
    yield "## 1,000 labels and 10 million records\n"
    yield Path(__file__).with_name("scale_cost.md").read_text(encoding="utf-8").format(
        index=index, open=fit(series("open index").medians)(n), group=group,
        memory=fit(series("memory of n").medians)(n), own=own / 60, share=share,
        demonstration=speed.demonstration(lengths, settings), **raw["cost"]["settings"], **raw["cost"]["lengths"],
    )  # fmt: skip
    yield (
        "| speed of a worker | "
        + " | ".join(f"k = {k}" for k in (1, 2, 10, 100))
        + " |\n|---|---|---|---|---|"
    )
    for factor in (1, 10, 100):
        faster = Speed(
            speed.prompt / factor,
            speed.token / factor,
            (speed.step or 0) / factor,
            (speed.public_step or 0) / factor,
        )
        hours = [Fleet(k, faster, share).hours(lengths, settings, labels) for k in (1, 2, 10, 100)]
        name = "this core" if factor == 1 else f"{factor} times"
        yield f"| {name} | " + " | ".join(f"{each:.3g} h" for each in hours) + " |"


def picture(shown: list[Series]) -> str:
    """All series on logarithmic axes."""
    rows = -(-len(shown) // COLUMNS)
    size = {"viewBox": f"0 0 {COLUMNS * WIDTH} {rows * HEIGHT}", "xmlns": "http://www.w3.org/2000/svg"}
    root = Element("svg", size)
    colours = "".join(f".{name}{{stroke:{LIGHT[name]}}}" for name in ("axis", "grid", "series-1", "series-2"))
    SubElement(
        root, "style"
    ).text = f"text{{font:13px system-ui,sans-serif;fill:{LIGHT['ink']}}}path{{fill:none;stroke-width:1.5}}{colours}"
    SubElement(root, "rect", {"fill": LIGHT["ground"], "width": "100%", "height": "100%"})
    for place, one in enumerate(shown):
        where = {"x": str(WIDTH * (place % COLUMNS)), "y": str(HEIGHT * (place // COLUMNS))}
        inner = plotted(one).root
        inner.attrib |= {**where, "width": str(WIDTH), "height": str(HEIGHT)}
        root.append(inner)
    return tostring(root, encoding="unicode") + "\n"


def plotted(one: Series) -> Plot:
    """One series with its line, on logarithmic axes."""
    points, line = one.medians, fit(one.medians)
    xs, ys = [math.log10(x) for x, _ in points], [math.log10(y) for _, y in points]
    plot = Plot(
        "plot-" + "".join(letter for letter in one.name if letter.isalnum()),
        f"{one.unit} against {one.variable}",
        f"From {short(points[0][1])} to {short(points[-1][1])} {one.unit}; {one.setup}.",
        across=(xs[0] - 0.05, xs[-1] + 0.05),
        up=(min(ys) - 0.2, max(ys) + 0.2),
        axes=(one.variable, f"{one.unit} ({one.name})"),
    )
    up = [(math.log10(y), short(y)) for y in ticks(10**plot.y.low, 10**plot.y.high)]
    plot.ticks([(x, short(10**x)) for x in xs], up)
    between = [xs[0] + (xs[-1] - xs[0]) * step / 40 for step in range(41)]
    fitted = [(x, math.log10(line(10**x))) for x in between]
    plot.line(plot.at(fitted), series_class(1), dash=dash_of(1))
    for x, y in plot.at(zip(xs, ys, strict=True)):
        plot.marker(x, y, 0)
    return plot


def ticks(low: float, high: float) -> list[float]:
    """Round values of a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [each for each in found if low <= each <= high]
    return inside if len(inside) <= MOST_TICKS else [each for each in inside if f"{each:e}"[0] == "1"]


def short(number: float) -> str:
    """Three digits, with thousands separated."""
    return f"{number:,.0f}" if number >= THOUSAND else f"{number:.3g}"


if __name__ == "__main__":
    main()
