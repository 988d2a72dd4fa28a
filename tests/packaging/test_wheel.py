"""The source archive and the wheel: built, checked, and installed where there is no compiler."""

from __future__ import annotations

import importlib.util
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
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install '.[packaging]'"
    ),
]


def run(*words: str | Path, **further: str) -> str:
    """What a program prints. It sees no PYTHONPATH, so it imports what is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | further
    done = subprocess.run(
        list(map(str, words)), env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


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
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/packaging/smoke.py"} <= names
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dpfewshot"}


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
