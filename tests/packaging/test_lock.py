"""requirements/ holds what pyproject.toml asks for, pinned by hash; the version stands in one place."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dpfewshot

ROOT = Path(__file__).parents[2]
ASKED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = ASKED["dependency-groups"]
# The extras (none: not the package at all) and the groups of each lock, as `make update` has them.
LOCKS = {
    "pip": ([], ["pip"]),
    "build": ([], ["build"]),
    "demo": (["demo", "ledger"], ["model"]),
    "compiled": ([], ["compiled"]),
    "dev": (["dev"], ["model", "site", "torch"]),
    "site": ([], ["site"]),
    "release": ([], ["release"]),
}
UNHASHED = {"torch"}  # docs/decisions/dependencies.md


def asked(extras, groups) -> Iterator[Requirement]:
    """What pyproject.toml asks for, with the extras that extras name."""
    for each in ASKED["project"]["dependencies"] if extras else ():
        yield Requirement(each)
    extras = [*extras]
    for name in extras:
        for each in map(Requirement, ASKED["project"]["optional-dependencies"][name]):
            if each.name == "dpfewshot":
                extras += sorted(each.extras - set(extras))
            else:
                yield each
    for group in groups:
        yield from map(Requirement, GROUPS[group])


def locked(name):
    """Each pin of a lock: the requirement, its hashes and who asks for it."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    blocks = re.findall(r"^(?![ #]).+\n(?: .*\n)*", text, re.MULTILINE)
    return [
        (
            Requirement(block.split("\\")[0]),
            re.findall(r"--hash=sha256:[0-9a-f]{64}\b", block),
            set(re.findall(r"#(?: via|  ) +([\w.-]+)", block)),
        )
        for block in blocks
    ]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_what_is_asked_for(name):
    wanted = [each for each in asked(*LOCKS[name]) if each.name not in UNHASHED]
    pins = locked(name)
    direct = {pin.name for pin, _, askers in pins if "dpfewshot" in askers}
    assert direct == {canonicalize_name(each.name) for each in wanted}, "run `make update`"
    for each in wanted:
        for pin, _, _ in pins:
            if pin.name == canonicalize_name(each.name):
                (version,) = pin.specifier
                assert each.specifier.contains(version.version), f"{pin} is not {each}: run `make update`"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_by_hash_and_names_no_place(name):
    for pin, hashes, askers in locked(name):
        assert [each.operator for each in pin.specifier] == ["=="], pin
        assert hashes, pin
        assert askers, pin
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE)


def test_locks_agree():
    found: dict[str, set[str]] = {}
    for name in LOCKS:
        for pin, _, _ in locked(name):
            found.setdefault(f"{pin.name} {pin.marker}", set()).add(str(pin.specifier))
    assert {name: versions for name, versions in found.items() if len(versions) > 1} == {}
    assert {str(pin) for pin, _, _ in locked("demo")} <= {str(pin) for pin, _, _ in locked("dev")}


def test_the_demo_has_no_client_of_a_service():
    clients = {
        "aiohttp",
        "httpcore2",
        "httpx",
        "httpx2",
        "llm",
        "openai",
        "requests",
        "sqlite-utils",
        "urllib3",
    }
    assert not clients & {pin.name for pin, _, _ in locked("demo")}


def test_what_stands_twice_is_the_same():
    assert set(ASKED["build-system"]["requires"]) <= set(GROUPS["build"])
    assert ASKED["project"]["optional-dependencies"]["llama-cpp"] == GROUPS["compiled"]
    stated = {f"{each['name']}=={each['version']}" for each in ASKED["tool"]["uv"]["dependency-metadata"]}
    assert stated == {*GROUPS["model"], *GROUPS["torch"]}


def test_the_version_stands_in_one_place():
    version = dpfewshot.__version__
    assert "version" not in ASKED["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [version]
    (date,) = re.findall(r"^date-released: (\d{4}-\d\d-\d\d)$", citation, re.MULTILINE)
    assert f"\n## {version} ({date})\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_a_script_beside_a_clone_imports_the_package_and_not_the_folder(tmp_path: Path) -> None:
    (tmp_path / "dpfewshot").mkdir()  # what a clone is called
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", "import dpfewshot; print(dpfewshot.__version__)"]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == dpfewshot.__version__, done.stderr
