"""The HTML page: one file, without scripts or external resources, with every text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import platform
from collections.abc import Mapping
from importlib import metadata as installed
from importlib import resources
from typing import TYPE_CHECKING, Final

from dpfewshot import __version__
from dpfewshot.audit import Figure, Finding
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import MissingExtra
from dpfewshot.report.charts import (
    MOST_POINTS,
    accuracy_chart,
    attack_chart,
    budget_chart,
    epsilon_mark,
    interval_chart,
    interval_text,
)
from dpfewshot.report.contents import Contents
from dpfewshot.report.guarantee import guarantee
from dpfewshot.report.palette import css_variables
from dpfewshot.report.svg import Drawing, Swatch
from dpfewshot.report.text import plural, visible
from dpfewshot.values import Demonstration, delta_text, epsilon_text

if TYPE_CHECKING:
    from datetime import date

    from jinja2 import Environment

_MINUTE: Final = 60
_LONGEST_FRACTION: Final = 100

_ROWS: Final = 50
"""Rows of a table; the page states the number of the rest."""

_CARDS: Final = 200
"""Demonstrations shown."""

_DETAILS: Final = 20_000
"""Characters of a finding's details."""


def page(contents: Contents, *, title: str, made: date) -> str:
    """Render the report as HTML.

    Args:
        contents: the selected contents.
        title: the heading.
        made: the date to print; the page states no time.

    Raises:
        MissingExtra: Jinja2 is not installed.
    """
    template = _environment().get_template("report.html")
    sheet = resources.files("dpfewshot.report") / "templates" / "report.css"
    style = css_variables() + sheet.read_text("utf-8")
    return template.render(
        contents=contents,
        title=title,
        made=made.isoformat(),
        style=style,
        policy=_policy(style),
        sections=_sections(contents),
        versions=_versions(),
        rows=_ROWS,
        cards=_CARDS,
        points=MOST_POINTS,
        swatches=[Swatch(number) for number in range(contents.most_series)],
        lines=[Swatch(number, marked=False) for number in range(2)],
        labels=_by_label(contents.demonstrations[:_CARDS]),
        **guarantee(contents),
        **_charts(contents),
    )


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("dpfewshot report", "report") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpfewshot.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible_text,
        trim_blocks=True,
    )
    environment.filters |= {
        "epsilon": epsilon_text,
        "delta": delta_text,
        "mark": epsilon_mark,
        "count": plural,
        "short": _short,
        "duration": _duration,
        "details": _details,
        "interval": interval_text,
    }
    return environment


def _visible_text(value: object) -> object:
    """Make every text that a template prints visible, except our own markup."""
    return visible(value) if type(value) is str else value


def _policy(style: str) -> str:
    """Return a policy that forbids loading and scripts, and allows only the style sheet with this hash."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _sections(contents: Contents) -> list[tuple[str, str]]:
    there = (
        ("guarantee", "The guarantee", True),
        ("budget", "The budget", contents.spending is not None),
        ("demonstrations", "Demonstrations", len(contents.demonstrations) > 0),
        ("accuracy", "Accuracy against ε", len(contents.panels) > 0),
        ("audits", "Audits", len(contents.findings) > 0),
        ("plan", "The plan and its cost", contents.plan is not None),
        ("about", "About this report", True),
    )
    return [(name, heading) for name, heading, is_there in there if is_there]


def _versions() -> dict[str, str]:
    versions = {"dpfewshot": __version__, "Python": platform.python_version()}
    return versions | {name: installed.version(name) for name in ("numpy", "scipy")}


def _charts(contents: Contents) -> dict[str, object]:
    charts: dict[str, object] = {
        "accuracy_charts": [
            (panel, accuracy_chart(panel, f"accuracy-{number}"))
            for number, panel in enumerate(contents.panels, start=1)
        ],
        "findings": [
            (finding, _figures(finding, f"finding-{number}"))
            for number, finding in enumerate(contents.findings, start=1)
        ],
    }
    if contents.promise is not None:
        charts["attack_chart"] = attack_chart(contents.promise)
    if contents.spending is not None:
        charts["budget_chart"] = budget_chart(contents.spending, dates=contents.confidential)
    return charts


def _figures(finding: Finding, name: str) -> list[tuple[Figure, Drawing]]:
    shown = finding.figures[:_ROWS]
    return [
        (figure, interval_chart(figure, f"{name}-{number}")) for number, figure in enumerate(shown, start=1)
    ]


def _by_label(demonstrations: Demonstrations) -> list[tuple[str, list[Demonstration]]]:
    found: dict[str, list[Demonstration]] = {}
    for one in demonstrations:
        found.setdefault(one.label, []).append(one)
    return list(found.items())


def _short(value: object) -> str:
    """Write a number to four digits, other values unchanged, and None as a dash."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, (int, float)) else _fraction(str(value))


def _fraction(text: str) -> str:
    """Write a fraction, such as a ledger's q, as a decimal."""
    above, _, below = text.partition("/")
    numbers = above.isdecimal() and below.isdecimal() and len(text) < _LONGEST_FRACTION and int(below)
    return f"{int(above) / int(below):.4g}" if numbers else text


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return plural(max(1, math.ceil(seconds)), "second")
    minutes = math.ceil(seconds / _MINUTE)
    return (
        plural(minutes, "minute") if minutes < 2 * _MINUTE else plural(math.ceil(minutes / _MINUTE), "hour")
    )


def _details(details: Mapping[str, object]) -> str:
    text = json.dumps(details, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= _DETAILS else f"{text[:_DETAILS]}\n… {len(text):,} characters in all"
