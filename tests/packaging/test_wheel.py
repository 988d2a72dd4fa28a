"""The source archive and the wheel: built, checked, and installed where there is no compiler."""

from __future__ import annotations

import filecmp
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("auditwheel", "build", "twine")
MISSING = [tool for tool in TOOLS if importlib.util.find_spec(tool) is None]

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: make .venv/release"),
]


def run(*words: str | Path, **further: str) -> str:
    """What a program prints. It sees what is installed: no PYTHONPATH, the programs beside this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    environment |= further
    done = subprocess.run(
        list(map(str, words)), env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, folder: Path, **further: str) -> Path:
    """A folder with the source archive, and the wheel that was built from it, by the locked tools."""
    lock = str(ROOT / "requirements" / "build.txt")
    run(sys.executable, "-m", "build", "--outdir", folder, source, PIP_CONSTRAINT=lock, **further)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel with the tag of the oldest system that it runs on."""
    (raw,) = built.glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", built / "repaired", raw)
    (repaired,) = (built / "repaired").glob("*.whl")
    return repaired


def test_the_index_would_accept_both(built: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, *built.glob("*.tar.gz"))


def test_the_archive_has_what_a_build_needs_and_the_wheel_no_sources(built: Path, wheel: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    sources = {f"csrc/{each.name}" for each in (ROOT / "csrc").iterdir() if each.suffix != ".c"}
    assert sources <= names
    locks = {f"requirements/{each.name}" for each in (ROOT / "requirements").iterdir()}
    assert (
        locks | {"LICENSE", "README.md", "build_backend.py", "pyproject.toml", "tests/packaging/smoke.py"}
        <= names
    )
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dpfewshot"}


def test_another_folder_day_and_user_give_the_same_bits(built: Path, tmp_path: Path) -> None:
    """From the archive, as everybody can: its wheel, and the archive that it makes of itself."""
    (archive,) = built.glob("*.tar.gz")
    away = tmp_path / "another" / "folder"
    with tarfile.open(archive) as files:
        files.extractall(away, filter="data")
    (source,) = away.iterdir()
    for each in source.rglob("*"):
        os.utime(each, (10**9, 10**9))
    again = build(source, tmp_path / "again", TZ="Asia/Tokyo", LC_ALL="C")
    names = sorted(each.name for each in again.iterdir())
    assert filecmp.cmpfiles(built, again, names, shallow=False) == (names, [], [])


def test_a_date_is_in_the_archives_and_nothing_else_changes(built: Path, tmp_path: Path) -> None:
    dated = build(ROOT, tmp_path, SOURCE_DATE_EPOCH="1700000000")
    (ours,), (theirs,) = built.glob("*.whl"), dated.glob("*.whl")
    with zipfile.ZipFile(ours) as one, zipfile.ZipFile(theirs) as other:
        assert {each.date_time for each in other.infolist()} == {(2023, 11, 14, 22, 13, 20)}
        changed = {name for name in one.namelist() if one.read(name) != other.read(name)}
    assert {name.rpartition("/")[2] for name in changed} == {"dpfewshot.cdx.json", "RECORD"}


def test_the_wheel_lists_its_components(built: Path, wheel: Path) -> None:
    """In the raw wheel and in the repaired one; pip checks RECORD when it installs."""
    for path in (*built.glob("*.whl"), wheel):
        with zipfile.ZipFile(path) as files:
            (place,) = (
                name for name in files.namelist() if name.endswith(".dist-info/sboms/dpfewshot.cdx.json")
            )
            told = json.loads(files.read(place))
            (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
            lines = files.read(metadata).decode().splitlines()
        needed = {
            line.split()[1].split(">")[0]
            for line in lines
            if line.startswith("Requires-Dist") and ";" not in line
        }
        assert {each["name"] for each in told["components"]} == needed | {"cython"}
        assert f"Version: {told['metadata']['component']['version']}" in lines


def test_the_wheel_needs_only_the_c_library(wheel: Path) -> None:
    assert "manylinux" in wheel.name
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel)
    assert "manylinux_2_" in shown


def test_it_runs_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    away = {"PATH": str(programs), "CC": "false", "CXX": "false"}
    run(programs / "pip", "install", "--quiet", "--only-binary", ":all:", f"{wheel}[ledger]", **away)
    run(programs / "python", ROOT / "tests" / "packaging" / "smoke.py", **away)
    assert run(programs / "dpfewshot", "--version", **away).startswith("dpfewshot, version")
