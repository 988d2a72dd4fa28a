"""The backend that docs/how-to/backends.md writes passes the suite from a shell, as the page says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfewshot.backends.conformance import CHECKS
from tests.support.pages import DOCS, blocks

PAGE = DOCS / "how-to/backends.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-c", "from dpfewshot.cli import main; main()", "doctor", "--backend"], "ok   closing"),
        (["-m", "pytest", "--dpfewshot-backend"], f"{len(CHECKS)} passed"),
    ],
)
def test_the_pages_shell_lines(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "bigrams.py").write_text(blocks(PAGE, "python")[0])
    program = [sys.executable, *arguments, "bigrams:Bigrams"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout


@pytest.mark.slow
def test_the_pages_package_is_found_by_its_name(tmp_path: Path) -> None:
    """Built and installed by pip, as the page says, into a folder of its own."""
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    (package / "bigrams.py").write_text(blocks(PAGE, "python")[0])
    (package / "pyproject.toml").write_text(blocks(PAGE, "toml")[0])
    pip = [sys.executable, "-m", "pip", "--quiet", "install"]
    offline = ["--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, *offline, "--target", str(site), str(package)], check=True)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    doctor = "from dpfewshot.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", doctor, "doctor", "--backend", "characters"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok   closing" in done.stdout


def test_every_check_is_in_the_pages_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [check for check in CHECKS if f"`{check}`" not in text] == []
