"""Puts faults into a copy of the project, one at a time: some test must fail for each.

    make soak                          # all of tests/seeded_faults, and more
    python -m bench.faults             # some minutes
    python -m bench.faults labels.py   # faults whose file or property contains a word

Exits with 1 if a fault survives, if its text does not occur in its file exactly once, or if its tests fail
without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.seeded_faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]
COPIED = (
    "bench",
    "csrc",
    "docs",
    "dpfewshot",
    "examples",
    "tests",
    "pyproject.toml",
    "setup.cfg",
    "README.md",
)
BUILD = "from setuptools import setup; setup()"
LONGEST = 1800  # seconds; tests that hang count as not run
PRINTED = 4000  # characters of pytest's output
PASSED, FAILED, HUNG = 0, 1, 124
CAUGHT = "caught"


def main() -> int:
    """Tries the faults and prints the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*", help="words of the files or properties to try; none: all")
    words = parser.parse_args().words
    faults = [
        fault for fault in FAULTS if not words or any(word in fault.file + fault.breaks for word in words)
    ]
    problems = [f"{fault.file}: not exactly once: {fault.text}" for fault in faults if not stands_once(fault)]
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder) / "project")
        if not problems:
            show("the tests without a fault")
            status, printed = tested(copy, sorted({name for fault in faults for name in fault.tests.split()}))
            problems += [f"without a fault pytest exits with {status}:\n{printed}"] * (status != PASSED)
        verdicts = {} if problems else {fault: tried(copy, fault) for fault in faults}
    problems += [f"{verdict}: {fault.breaks}" for fault, verdict in verdicts.items() if verdict != CAUGHT]
    print("", *problems, f"{len(verdicts)} faults, {len(problems)} problems", sep="\n")
    return 1 if problems else 0


def stands_once(fault: Fault) -> bool:
    """Whether the text to replace occurs in its file exactly once."""
    return bool((ROOT / fault.file).read_text().count(fault.text) == 1)


def tried(copy: Path, fault: Fault) -> str:
    """A fault's verdict, which is printed too."""
    show(f"{fault.breaks} ({fault.file})")
    start = time.monotonic()
    with seeded(copy, fault):
        status, _ = tested(copy, fault.tests.split())
    died = status < 0 and -status != signal.SIGKILL  # native code may abort; a kill is the machine's
    verdict = CAUGHT if died else {PASSED: "SURVIVED", FAILED: CAUGHT}.get(status, f"NOT RUN {status}")
    show("")
    print(f"{verdict:<10} {time.monotonic() - start:5.0f} s  {fault.breaks} ({fault.file})", flush=True)
    return verdict


@contextmanager
def seeded(copy: Path, fault: Fault) -> Iterator[None]:
    """Puts the fault into the copy, and restores the copy afterwards."""
    changed = [copy / fault.file, *(core_of(copy) if fault.compiled else ())]
    before = {path: path.read_bytes() for path in changed}
    source = copy / fault.file
    source.write_text(source.read_text().replace(fault.text, fault.replacement))
    try:
        if fault.compiled:
            run(copy, "-c", BUILD, "build_ext", "--inplace", "--force").check_returncode()
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def tested(copy: Path, names: list[str]) -> tuple[int, str]:
    """The exit status of pytest, 0 if all passed, 1 if a test failed; and the end of what it printed."""
    there = [name for name in names if (copy / name.partition("::")[0]).exists()]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not soak and not browser"]
    try:
        done = run(copy, "-m", "pytest", *options, *(there or names))
    except subprocess.TimeoutExpired:
        return HUNG, f"no end after {LONGEST} s"
    return done.returncode, done.stdout[-PRINTED:]


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the copy, with the copy's package."""
    return subprocess.run(  # noqa: S603 - the words are those of the table
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


def copied(copy: Path) -> Path:
    """Copies the project and its built core, and nothing else of this folder.

    Raises:
        RuntimeError: Python there imports the package from elsewhere.
    """
    copy.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.c"))
        else:
            shutil.copy(ROOT / name, copy)
    imported = run(copy, "-c", "import dpfewshot._core as core; print(core.__file__)")
    if not imported.stdout.startswith(str(copy)):
        raise RuntimeError(f"the copy is not what is imported: {imported.stdout}{imported.stderr}")
    return copy


def core_of(copy: Path) -> Iterable[Path]:
    """The compiled core."""
    return (copy / "dpfewshot").glob("_core*.so")


def show(text: str) -> None:
    """Shows progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
