"""Completes the site that `make site` builds: pages that are made of other files.

    index.md                the README
    reference/*.md          the public names, one page a package, from their docstrings
    reference/commands.md   the command line, from its help
    source/...              each source file that a page links to

MkDocs calls the functions named `on_...` (mkdocs.yml, `hooks`). Links out of docs/ are rewritten to these
pages, so that MkDocs checks them and the site is whole without a network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGES = ("", ".backends", ".mechanisms", ".accounting", ".icl", ".evaluation", ".audit")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
NOTEBOOK = ".ipynb"
LANGUAGES = {
    ".py": "python",
    ".pyx": "cython",
    ".pxd": "cython",
    ".pxi": "cython",
    ".h": "c",
    ".toml": "toml",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of other files."""
    pages = {"index.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    pages |= {f"reference/{name}.md": text for name, text in reference()}
    pages["reference/commands.md"] = commands()
    pages |= dict(sources())
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links of the README, and links to source files, at their pages."""
    path = page.file.src_uri
    if path.startswith("source/") and not path.endswith(f"{NOTEBOOK}.md"):
        return markdown
    root, written = (ROOT, path.removeprefix("source/")) if path.startswith("source/") else (DOCS, path)
    folder = ROOT if path == "index.md" else (root / written).parent

    def pointed(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        return f"]({_from(path, site_path(target))}{link[2] or ''})"

    return LINK.sub(pointed, markdown)


def site_path(target: Path) -> str:
    """The page of a file of the project, relative to the site's root."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    if target == ROOT / "README.md":
        return "index.md"
    return f"source/{target.relative_to(ROOT).as_posix()}.md"


def _from(path: str, target: str) -> str:
    return "../" * path.count("/") + target


def sources() -> Iterator[tuple[str, str]]:
    """A page for each file outside of docs/ that a page links to; a folder's page lists its files."""
    linked = {
        (page.parent / link[1]).resolve()
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for link in LINK.finditer(page.read_text(encoding="utf-8"))
    }
    for target in sorted(linked):
        if not target.is_relative_to(DOCS) and target != ROOT / "README.md" and target.exists():
            yield site_path(target), source_page(target)


def source_page(target: Path) -> str:
    """A file between fences, a notebook's cells, or the names of a folder's files."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        return "\n".join([f"# {name}/", "", *(f"- `{each.name}`" for each in sorted(target.iterdir()))])
    text = target.read_text(encoding="utf-8")
    if target.suffix == NOTEBOOK:
        return "\n\n".join(map(cell_text, json.loads(text)["cells"]))
    return f"# {name}\n\n````{LANGUAGES.get(target.suffix, 'text')}\n{text}\n````\n"


def cell_text(cell: dict[str, Any]) -> str:
    """A notebook's cell: its words, or its code between fences."""
    source = "".join(cell["source"])
    return source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"


def reference() -> Iterator[tuple[str, str]]:
    """The public names of each package with the module that defines them."""
    for suffix in PACKAGES:
        package = import_module(f"dpfewshot{suffix}")
        names = [name for name in package.__all__ if not isinstance(getattr(package, name), ModuleType)]
        lines = [f"# {package.__name__}", "", (package.__doc__ or "").partition("\n")[0]]
        for name in names:
            lines += ["", f"::: {home(package, name)}.{name}"]
        yield package.__name__, "\n".join(lines)


def home(package: ModuleType, name: str) -> str:
    """The module that defines a public name."""
    homes = getattr(package, "_HOMES", {})
    return str(homes.get(name) or getattr(getattr(package, name), "__module__", package.__name__))


def commands() -> str:
    """The help of every command."""
    application = import_module("dpfewshot.cli.application").cli
    lines = ["# The command line", ""]
    for context in contexts(click.Context(application, info_name="dpfewshot")):
        lines += [f"## {context.command_path}", "", "```text", context.get_help(), "```", ""]
    return "\n".join(lines)


def contexts(context: click.Context) -> Iterator[click.Context]:
    """A command's context, and those of all commands under it."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None:
                yield from contexts(click.Context(command, info_name=name, parent=context))
