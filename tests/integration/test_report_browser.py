"""The report in a real browser: nothing fails, everything is drawn, and everybody can read it.

Needs Debian's `chromium`; skipped aloud without it (.ci/run installs it). Set DPFEWSHOT_SCREENSHOTS to a
folder to look at the pages and at what a printer gets.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from dpfewshot.report import Sources, page, select
from tests.support.report_samples import sources

pytestmark = pytest.mark.browser

QUIET = ["gpu", "quic", "background-networking", "component-update", "sync"]
DESKTOP, PHONE = 1280, 360
VIEWS = [
    ("light", DESKTOP, False),
    ("light", PHONE, False),
    ("dark", DESKTOP, False),
    ("dark", PHONE, False),
    ("light", DESKTOP, True),
    ("dark", PHONE, True),
]
INVISIBLE = """() => [...document.querySelectorAll('svg path, svg text')].filter(element => {
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    const bare = style.stroke === 'none' && style.fill === 'none';
    return (box.width === 0 && box.height === 0) || bare || style.visibility !== 'visible';
}).map(element => element.outerHTML)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: the report is not looked at in a browser")
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
    with sync_playwright() as playwright:  # it makes a new user-data folder each time
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return sources(tmp_path_factory.mktemp("samples"))


@dataclasses.dataclass
class Seen:
    """A page that is open, what it said on the console, and what it asked the network for."""

    page: Page
    console: list[str] = dataclasses.field(default_factory=list)
    requests: list[str] = dataclasses.field(default_factory=list)

    def violations(self) -> list[str]:
        return [each["id"] for each in Axe().run(self.page).response["violations"]]


def opened(browser: Browser, path: Path, scheme: str = "light", width: int = DESKTOP) -> Seen:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    seen = Seen(context.new_page())
    seen.page.on("console", lambda message: seen.console.append(message.text))
    seen.page.on("pageerror", lambda error: seen.console.append(str(error)))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.goto(path.as_uri())
    return seen


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
    assert seen.page.locator("svg.chart").count() == (9 if confidential else 7)
    assert seen.page.evaluate(INVISIBLE) == []
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
    cells = [dataclasses.replace(cell, task=nasty, condition=nasty) for cell in samples.cells]
    given = dataclasses.replace(samples, demonstrations=ones, findings=findings, cells=cells)
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
    seen.page.evaluate("document.querySelector('svg path.axis').setAttribute('d', '')")
    assert "color-contrast" in seen.violations()
    assert len(seen.page.evaluate(INVISIBLE)) == 1
    seen.page.context.close()
