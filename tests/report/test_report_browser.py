"""The report in a real browser: nothing fails, and everybody can read it.

Needs Debian's `chromium`; skipped aloud without it (.ci/run installs it). Set DPFEWSHOT_SCREENSHOTS to a
folder to look at the pages and at what a printer gets.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from dpfewshot.report import Sources, page, select
from tests.support.browsers import DESKTOP, PHONE, Seen, chromium, opened
from tests.support.report_samples import sources

pytestmark = pytest.mark.browser

VIEWS = [
    ("light", DESKTOP, False),
    ("light", PHONE, False),
    ("dark", DESKTOP, False),
    ("dark", PHONE, False),
    ("light", DESKTOP, True),
    ("dark", PHONE, True),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return sources(tmp_path_factory.mktemp("samples"))


def written(folder: Path, given: Sources, *, confidential: bool = False) -> Path:
    path = folder / "report.html"
    text = page(select(given, confidential=confidential), title="Support tickets", made=date(2026, 1, 31))
    path.write_text(text, encoding="utf-8")
    return path


def keep(seen: Seen, name: str) -> None:
    folder = os.environ.get("DPFEWSHOT_SCREENSHOTS")
    if folder is not None:
        seen.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
        seen.page.pdf(path=Path(folder) / f"{name}.pdf", prefer_css_page_size=True)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: "-".join(map(str, view)))
def test_every_view(browser, samples, tmp_path, view) -> None:
    scheme, width, confidential = view
    path = written(tmp_path, samples, confidential=confidential)
    seen = opened(browser, path, scheme, width)
    keep(seen, f"{'confidential-' if confidential else ''}{scheme}-{width}")
    assert seen.requests == [path.as_uri()]
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    assert (seen.page.evaluate(background()) == "rgb(20, 23, 27)") == (scheme == "dark")
    assert seen.violations() == []
    assert seen.console == []
    seen.page.context.close()


def background() -> str:
    return "getComputedStyle(document.body).backgroundColor"


def test_paper_is_light_and_shows_what_is_folded(browser, samples, tmp_path) -> None:
    seen = opened(browser, written(tmp_path, samples), "dark")
    rows = seen.page.locator("details table tbody tr").first
    assert not rows.is_visible()
    seen.page.emulate_media(media="print", color_scheme="dark")
    assert seen.page.evaluate(background()) == "rgb(255, 255, 255)"
    assert rows.bounding_box()["height"] > 0
    assert not seen.page.locator("nav").is_visible()
    assert seen.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    seen.page.context.close()


def test_hostile_text_stays_in_its_place(browser, samples, tmp_path) -> None:
    nasty = (
        "</style></title><script>document.title = 'run'</script><img src=x onerror=alert(1)>\u202e"
        + "w" * 900
    )
    ones = [dataclasses.replace(one, text=nasty, label=nasty) for one in samples.demonstrations]
    findings = [dataclasses.replace(finding, title=nasty, statement=nasty) for finding in samples.findings]
    given = dataclasses.replace(samples, demonstrations=ones, findings=findings)
    path = written(tmp_path, dataclasses.replace(given, demonstrations=type(samples.demonstrations)(ones)))
    seen = opened(browser, path, width=PHONE)
    keep(seen, "hostile")
    assert seen.page.title() == "Support tickets"
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert (seen.requests, seen.console, seen.violations()) == ([path.as_uri()], [], [])
    seen.page.context.close()


def test_the_checks_can_fail(browser, samples, tmp_path) -> None:
    """Controls: a script that the policy stops and the console tells of, faint text, a wordless picture."""
    path = written(tmp_path, samples)
    text = path.read_text(encoding="utf-8")
    nasty = '<script>document.title = "run"</script><img src="https://localhost/x">'
    path.write_text(text.replace("</main>", f"{nasty}</main>"), encoding="utf-8")
    seen = opened(browser, path)
    assert seen.page.title() == "Support tickets"
    assert len(seen.console) >= 2
    assert len(seen.requests) == 2  # the policy refuses the second one
    assert "image-alt" in seen.violations()
    seen.page.evaluate("document.documentElement.style.setProperty('--quiet', '#999999')")
    assert "color-contrast" in seen.violations()
    seen.page.context.close()
