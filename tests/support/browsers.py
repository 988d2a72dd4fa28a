"""Debian's Chromium, and what a page says and fetches when it is opened there."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

QUIET = ["gpu", "quic", "background-networking", "component-update", "sync"]
DESKTOP, PHONE = 1280, 360


@contextmanager
def chromium() -> Iterator[Browser]:
    """A new browser; skips, aloud, where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: nothing is looked at in a browser")
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
    with sync_playwright() as playwright:  # it makes a new user-data folder each time
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@dataclasses.dataclass
class Seen:
    """A page that is open, what it said on the console, and what it asked the network for."""

    page: Page
    console: list[str] = dataclasses.field(default_factory=list)
    requests: list[str] = dataclasses.field(default_factory=list)

    def violations(self) -> list[str]:
        return [each["id"] for each in Axe().run(self.page).response["violations"]]


def opened(browser: Browser, page: Path | str, scheme: str = "light", width: int = DESKTOP) -> Seen:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    seen = Seen(context.new_page())
    seen.page.on("console", lambda message: seen.console.append(message.text))
    seen.page.on("pageerror", lambda error: seen.console.append(str(error)))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.goto(page if isinstance(page, str) else page.as_uri())
    return seen
