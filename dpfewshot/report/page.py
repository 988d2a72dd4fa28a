"""The HTML page: one file, without scripts or external resources, with every text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import unicodedata
from collections.abc import Mapping
from datetime import date
from importlib import metadata as installed
from importlib import resources
from typing import TYPE_CHECKING, Final

from dpfewshot import __version__
from dpfewshot.account.scopes import scope_text
from dpfewshot.errors import needs_extra
from dpfewshot.planning.plan import HARDLY_PROTECTS
from dpfewshot.report.contents import Contents
from dpfewshot.report.promise import factor_text
from dpfewshot.values import believed, by_label, delta_text, epsilon_text, percent_text, unit_noun

if TYPE_CHECKING:
    from jinja2 import Environment

_PRIORS: Final = ((1e-6, "1 in a million"), (1e-3, "1 in 1,000"), (0.1, "1 in 10"), (0.5, "1 in 2"))
_FALSE_ALARMS: Final = ((1e-3, "1 in 1,000"), (1e-2, "1 in 100"), (0.1, "1 in 10"))

_ROWS: Final = 50
"""Rows of a table; the page states the number of the rest."""

_CARDS: Final = 200
"""Demonstrations shown."""

_DETAILS: Final = 20_000
"""Characters of a finding's details."""

_JOINERS: Final = "\u200c\u200d"
"""Persian and emoji need them."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of invisible or rearranging characters: control and format characters (among them
changes of writing direction), surrogates, private use, line and paragraph separators."""


def page(contents: Contents, *, title: str, made: date) -> str:
    """Render the report as HTML, with a title and the date on which it was made.

    Raises:
        MissingExtra: Jinja2 is not installed.
    """
    template = _environment().get_template("report.html")
    style = (resources.files("dpfewshot.report") / "templates" / "report.css").read_text("utf-8")
    versions = {"dpfewshot": __version__, "Python": platform.python_version()}
    return template.render(
        contents=contents,
        title=title,
        made=made.isoformat(),
        style=style,
        policy=_policy(style),
        sections=_sections(contents),
        versions=versions | {name: installed.version(name) for name in ("numpy", "scipy")},
        labels=by_label(contents.demonstrations[:_CARDS]).items(),
    )


def _environment() -> Environment:
    with needs_extra("dpfewshot report", "report"):
        import jinja2
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpfewshot.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,  # not our own markup
        trim_blocks=True,
    )
    environment.filters |= {
        "epsilon": epsilon_text,
        "delta": delta_text,
        "percent": percent_text,
        "factor": factor_text,
        "count": _count,
        "short": _short,
        "details": _details,
        "scope": scope_text,
        "noun": unit_noun,
    }
    environment.globals |= {
        "believed": believed,
        "cards": _CARDS,
        "false_alarms": _FALSE_ALARMS,
        "hardly_protects": HARDLY_PROTECTS,
        "priors": _PRIORS,
        "rows": _ROWS,
    }
    return environment


def visible(text: str) -> str:
    """Write out every invisible character, as in ⟨U+202E⟩; line ends stay."""

    def hidden(each: str) -> bool:
        return unicodedata.category(each) in _HIDDEN and each not in "\n\t" + _JOINERS

    return "".join(f"⟨U+{ord(each):04X}⟩" if hidden(each) else each for each in text)


def _policy(style: str) -> str:
    """A policy that forbids loading and scripts, and allows only the style sheet with this hash."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _sections(contents: Contents) -> list[tuple[str, str]]:
    there = (
        ("guarantee", "The guarantee", True),
        ("budget", "The budget", contents.spending is not None),
        ("demonstrations", "Demonstrations", len(contents.demonstrations) > 0),
        ("audits", "Audits", len(contents.findings) > 0),
        ("about", "About this report", True),
    )
    return [(name, heading) for name, heading, is_there in there if is_there]


def _count(number: int, noun: str) -> str:
    """Write a number with its noun: "1 plan", "2,000 plans"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(value: object) -> str:
    """Write a number, or a fraction such as a ledger's q, to four digits, and None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, (int, float)):
        return f"{value:.4g}"
    fraction = re.fullmatch(r"(\d{1,50})/(\d{1,50})", str(value))
    return f"{int(fraction[1]) / int(fraction[2]):.4g}" if fraction and int(fraction[2]) else str(value)


def _details(details: Mapping[str, object]) -> str:
    text = json.dumps(details, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= _DETAILS else f"{text[:_DETAILS]}\n… {len(text):,} characters in all"
