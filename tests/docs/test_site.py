"""The documentation's site: it builds without a warning, needs no network, and can be read by everybody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import dpfewshot
from tests.support.browsers import DESKTOP, PHONE, chromium, opened

ROOT = Path(__file__).parents[2]
PAGES = (
    "results/utility",
    "proofs/accounting",
    "reference/dpfewshot",
    "source/examples/notebooks/first_set.ipynb",
)
"""The widest tables, formulas, the longest names, a notebook."""
CODE_CUT_OFF = (
    "[...document.querySelectorAll('pre > code')].filter(e => e.scrollWidth > e.clientWidth).length"
)
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}
VIEWS = [("light", PHONE), ("dark", DESKTOP)]


class Loads(HTMLParser):
    """Collects what a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("rel") == "canonical":
            return
        self.found += [value for name, value in attrs if (tag, name) in LOADED and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix(".html")
        name = "index.html" if path.name == "README.html" else path.name
        assert (site / path.parent / name).exists(), path
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert not [each for each in loads.found if each.startswith(("http:", "https:", "//"))], page


def test_the_file_for_language_models_names_pages_of_the_site(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 15
    assert [link for link in links if not (site / link).exists()] == []


def test_the_reference_has_every_public_name_and_every_command(site: Path) -> None:
    reference = (site / "reference/dpfewshot.html").read_text(encoding="utf-8")
    for name in ("Synthesizer", "Task", "read_records", "PrivacyBudget", "choose"):
        assert name in dpfewshot.__all__
        assert f".{name}" in reference
    assert "What a budget must be" not in reference  # a control: not just any words are found
    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    for command in ("demo", "plan", "generate", "ledger create", "ledger verify"):
        assert f"dpfewshot {command}</h2>" in commands or f"dpfewshot {command}<a" in commands


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), VIEWS)
def test_pages_can_be_read(address: str, browser: Browser, scheme: str, width: int) -> None:
    for name in PAGES:
        seen = opened(browser, f"{address}/{name}.html", scheme, width)
        assert not [url for url in seen.requests if not url.startswith((address, "data:", "blob:"))]
        assert seen.page.locator("h1").first.is_visible()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert seen.page.evaluate(CODE_CUT_OFF) == 0, name
        assert seen.console == [], name


@pytest.mark.browser
def test_search_finds_a_page(address: str, browser: Browser) -> None:
    seen = opened(browser, f"{address}/index.html")
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("PostgreSQL")
    hit = seen.page.locator(".md-search-result__item a").first
    hit.wait_for(timeout=60_000)
    assert "html" in (hit.get_attribute("href") or "")
