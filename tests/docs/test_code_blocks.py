"""Every Python block of the README and the docs runs: a document is one namespace, in a folder of its own."""

import re
from pathlib import Path

import pytest

from tests.support.pages import DOCS, PAGES, blocks, name_of
from tests.support.small_models import small, small_packaged
from tests.support.tiny_models import SIZES, save_tiny_model

FIXTURES = (small, small_packaged)


def project_file(folder: Path) -> None:
    """The file of the page itself, which test_project_file.py compares with what `init` writes."""
    (text,) = blocks(DOCS / "how-to/project-file.md", "toml")
    (folder / "dpfewshot.toml").write_text(text, encoding="utf-8")


OPENED = {
    DOCS / "how-to/servers.md": lambda folder: save_tiny_model(folder / "model", **SIZES),
    DOCS / "how-to/project-file.md": project_file,
}
"""Makes what a page opens, in place of the user: the folder of a model, a project file."""
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]*)\)")
WHOLE = "README.md", "demonstrations.md"
"""Pages that say what the packaged model writes; others load a tenth of it."""
WITH_CODE = [page for page in PAGES if blocks(page, "python")]


def test_the_finder_finds_blocks() -> None:
    assert len(WITH_CODE) > 10


@pytest.mark.model
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_code_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if page.name not in WHOLE:
        request.getfixturevalue("small_packaged")
    if page in OPENED:
        OPENED[page](tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for number, block in enumerate(blocks(page, "python"), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)  # noqa: S102 - our own docs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head) for head in heads)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in shown}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_anchors_lead_to_headings(page: Path) -> None:
    links = ANCHOR.findall(page.read_text(encoding="utf-8"))
    places = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links]
    assert [each for each in places if each[0].suffix == ".md" and each[1] not in anchors(each[0])] == []


def test_a_heading_that_is_not_there_is_found() -> None:
    assert "what-it-does-not-cover" in anchors(DOCS / "guarantee.md")
    assert "what-nobody-wrote" not in anchors(DOCS / "guarantee.md")
