"""docs/architecture.md names files and functions that exist, and its picture is what the script draws now."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.pages import DOCS, ROOT, script

PAGE = DOCS / "architecture.md"
NAMED = re.compile(r"`([\w./]+\.(?:py|pxd|pxi|md|svg|cfg))(?::([\w., ]+))?`")


def named() -> list[tuple[str, str]]:
    """Each file of the page with one of the functions named after its colon, or none."""
    found = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    return [(path, name.strip()) for path, names in found for name in names.split(",")]


def file_of(path: str) -> Path:
    return next(
        (place for place in (ROOT / "dpfewshot" / path, ROOT / path, PAGE.parent / path) if place.exists()),
        ROOT / path,
    )


def definitions(path: Path) -> set[str]:
    """Every function, class and `Class.method` of a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{each.name}" for each in inner}
    return names


def exists(path: str, name: str) -> bool:
    file = file_of(path)
    if not file.is_file():
        return False
    if name and file.suffix == ".py":
        return name in definitions(file)
    return not name or re.search(rf"\b{name}\(", file.read_text(encoding="utf-8")) is not None


def test_every_name_exists() -> None:
    assert len(named()) > 60
    assert [each for each in named() if not exists(*each)] == []


def asking(name: str) -> set[str]:
    """Each function of the package that reads an attribute of this name, as the page names it."""
    found: set[str] = set()
    for source in sorted((ROOT / "dpfewshot").rglob("*.py")):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for prefix, body in (("", tree.body), *((f"{one.name}.", one.body) for one in classes)):
            found |= {
                f"{source.relative_to(ROOT / 'dpfewshot')}:{prefix}{function.name}"
                for function in body
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                and any(isinstance(each, ast.Attribute) and each.attr == name for each in ast.walk(function))
            }
    return found


def test_all_places_that_ask_for_one_count_are_listed() -> None:
    _, table = PAGE.read_text(encoding="utf-8").split("These places ask for it, and no others.")
    rows, _ = table.split("\n## ", 1)
    assert {f"{path}:{name}" for path, name in NAMED.findall(rows)} == asking("draws_once")


def test_a_name_that_does_not_exist_is_found() -> None:
    assert not exists("sampling.py", "NoSampler.draw")
    assert not exists("csrc/draws.pxi", "no_subsets")
    assert not exists("no_room.py", "")


def test_every_room_is_in_the_table() -> None:
    drawn = script("draw_architecture")
    table = PAGE.read_text(encoding="utf-8").split("## Rooms")[1].split("\n## ")[0]
    rooms = {room for row in drawn.layers() for room in row} - {drawn.CORE}
    assert {room for room in rooms if f"`{room}/`" not in table and f"`{room}.py`" not in table} == set()


def test_the_picture_is_what_the_script_draws() -> None:
    drawn = script("draw_architecture")
    assert drawn.PICTURE.read_text(encoding="utf-8") == drawn.picture(), (
        "run: python docs/draw_architecture.py"
    )


def test_arrows_leave_out_what_follows() -> None:
    drawn = script("draw_architecture")
    sees = {"a": {"b", "c"}, "b": {"c"}}
    assert drawn.arrows(sees) == [("a", "b"), ("b", "c")]
