"""What choosing gains, the targets it was measured for, and why one is missed: tables of docs/results/utility.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.utility_choice import Line
from bench.utility_choice_tables import NAMES, SERVICES, Group, Rows, groups
from bench.utility_data import DATA_SETS
from dpfewshot.evaluation import Cell
from dpfewshot.evaluation.summaries import Difference, mean_difference

POINT, AHEAD, MORE, TASKS = 1.0, 3.0, 5.0, 3
"""Points that choosing may lose to the best prompt, should gain over ε = 0 on so many tasks, and over ours on average."""

SERVED = SERVICES | {"released": "one text at a time, released calibration"}
"""How texts are labelled; free labels have no calibration."""

TITLES = ("zero-shot", "ε = 0", "ours")


@dataclass(frozen=True)
class Gain:
    """What choosing gains in one row, in points.

    Attributes:
        group: the row.
        how: it is served: of `SERVED`.
        shipped: the outcomes of what is chosen.
        best: the place in `TITLES` of the best prompt that is not chosen.
        over_best: over that prompt.
        over_ours: over ours.
        over_free: over ε = 0.
    """

    group: Group
    how: str
    shipped: Rows
    best: int
    over_best: Difference
    over_ours: Difference
    over_free: Difference

    @classmethod
    def of(cls, group: Group, how: str) -> Gain:
        """A group's."""
        shipped = group.released if how == "released" and group.released is not None else group.chosen
        plain = group.plain
        best = max(range(len(plain)), key=lambda place: float(plain[place].mean()))
        shift = 0.0 if how == "released" else group.achieved - float(group.chosen.mean())
        found = [difference(shipped, plain[place], shift) for place in (best, 2, 1)]
        return cls(group, how, shipped, best, *found)

    @property
    def row(self) -> str:
        """The row's name."""
        first = self.group.lines[0]
        return f"{SERVED[self.how]} | {first.user} | {first.task}"

    @property
    def where(self) -> str:
        """The same in a sentence."""
        first = self.group.lines[0]
        return f"{first.task} ({first.user.split()[0]}, {SERVED[self.how]})"

    @property
    def spreads(self) -> list[str]:
        """The standard deviations of the repetitions of ε = 0, ours and the chosen, in points."""
        return [
            "–" if len(rows) == 1 else f"{100 * rows.mean(axis=1).std(ddof=1):.1f}"
            for rows in (*self.group.plain[1:], self.shipped)
        ]

    @property
    def losses(self) -> str:
        """Where the points below the best prompt were lost, by what the same records choose otherwise."""
        chosen = self.group.lines[0].chosen[self.group.service]
        achieved, best = 100 * self.group.achieved, 100 * self.group.achieved - self.over_best.mean
        if chosen.noiseless is None or self.how == "released":
            return f"Chosen by right and wrong, without a released calibration: {achieved:.1f} %"
        noiseless = 100 * self.group.mean("noiseless")
        if chosen.by_all is None:
            return f"noise {achieved - noiseless:+.1f}, half of the items in place of all of them {noiseless - best:+.1f}"
        by_all = 100 * self.group.mean("by_all")
        name = NAMES["held-out"][self.best]
        return (
            f"noise {achieved - noiseless:+.1f}, half of the scored records in place of all {noiseless - by_all:+.1f}, "
            f"what all of them prefer beside what the test items prefer {by_all - best:+.1f}; on the records {TITLES[self.best]} has "
            f"{100 * self.group.held(name):.1f} % and the chosen ones {100 * self.group.chosen_held:.1f}"
        )


def gains(lines: Sequence[Line], cells: Sequence[Cell], kind: str) -> list[Gain]:
    """Those of every row."""
    found = groups(lines, kind, cells)
    services = [(group, group.service) for group in found]
    if kind == "held-out":
        services += [(group, "released") for group in found if group.service == "single"]
    return [Gain.of(group, how) for each in SERVED for group, how in services if how == each]


def difference(first: Rows, second: Rows, shift: float) -> Difference:
    """That of two means in points, the first one moved."""
    found = mean_difference(first, second, paired=first.shape == second.shape)
    mean, low, high = (100 * (end + shift) for end in (found.mean, found.low, found.high))
    return Difference(mean, low, high)


def targets(lines: Sequence[Line], cells: Sequence[Cell], kind: str) -> str:
    """What choosing gains over each alternative."""
    rows = []
    for one in gains(lines, cells, kind):
        three = (
            f"{each.mean:+.1f} [{each.low:+.1f}, {each.high:+.1f}]"
            for each in (one.over_best, one.over_ours, one.over_free)
        )
        rows.append(f"| {one.row} | {TITLES[one.best]} | {' | '.join(three)} | {' / '.join(one.spreads)} |")
    if not rows:
        return ""
    head = [
        "| service | user | task | best of the three | chosen less it | chosen less ours | chosen less ε = 0 | s.d. of repetitions: ε = 0 / ours / chosen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def verdict(lines: Sequence[Line], cells: Sequence[Cell], kind: str) -> str:
    """The three targets on the papers' tasks, by service and user, with the measured reason of every miss."""
    by: dict[tuple[str, str], list[Gain]] = {}
    for one in gains(lines, cells, kind):
        first = one.group.lines[0]
        if first.task in DATA_SETS:
            by.setdefault((first.user, one.how), []).append(one)
    return "\n".join(line for key, found in by.items() for line in _verdict(*key, found)) + "\n"


def _verdict(user: str, how: str, found: Sequence[Gain]) -> Iterator[str]:
    yield f"**{user}, {SERVED[how]}** ({len(found)} task{'s' * (len(found) > 1)}):\n"
    below = [one for one in found if one.over_best.mean < -POINT]
    yield f"- At most {POINT:g} point below the best of zero-shot, ε = 0 and ours: {'missed' if below else 'met'}."
    for one in below:
        yield f"  - {one.where}: {one.over_best.mean:+.1f} beside {TITLES[one.best]}. {one.losses}."
    mean = sum(one.over_ours.mean for one in found) / len(found)
    few = [
        f"{one.group.lines[0].task} {one.over_ours.mean:+.1f}" for one in found if one.over_ours.mean < MORE
    ]
    yield (
        f"- At least {MORE:g} points above ours on average: {mean:+.1f}, {'met' if mean >= MORE else 'missed'}."
        + f" Below that: {', '.join(few)}." * bool(few)
    )
    ahead = [one for one in found if one.over_free.mean >= AHEAD and one.over_free.low > 0]
    met = "met" if len(ahead) >= TASKS else "missed"
    yield (
        f"- At least {AHEAD:g} points above ε = 0, with an interval above 0, on {TASKS} tasks: {len(ahead)}, {met}"
        + f" ({', '.join(one.group.lines[0].task for one in ahead)})" * bool(ahead)
        + "."
    )
    for one in found:
        if one not in ahead and len(ahead) < TASKS:
            yield f"  - {one.where}: {one.over_free.mean:+.1f}; {_behind(one)}."
    yield ""


def _behind(one: Gain) -> str:
    """Why a row is not surely ahead of ε = 0."""
    if one.over_free.mean >= AHEAD:
        runs = [len(rows) for rows in (one.group.plain[1], one.shipped)]
        return f"the interval has the spread of {runs[0]} repetitions of ε = 0 (s.d. {one.spreads[0]}) and {runs[1]} of the chosen"
    share = (
        f"instruction-only prompts are chosen in {100 * one.group.share('instruction'):.0f} % of the draws"
    )
    first = one.group.lines[0]
    if first.kind == "cross-fit":
        return share
    free = one.group.held(NAMES["held-out"][1])
    return f"{share}; on the records the chosen ones have {100 * one.group.chosen_held:.1f} % and ε = 0 {100 * free:.1f}"
