"""Environments of the peers' packages, under STORE: created once, and called as programs that print JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INSIDE = Path(__file__).parent / "inside"
DONE = "installed"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the packages of one peer.

    Attributes:
        name: of its folder.
        packages: as pip takes them.
        program: in bench/peers/inside.
    """

    name: str
    packages: tuple[str, ...]
    program: str

    def python(self, store: Path) -> Path:
        """Its interpreter; installs the packages the first time."""
        folder = store / "environments" / self.name
        interpreter = folder / "bin" / "python"
        if not (folder / DONE).exists():
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *self.packages], check=True)  # noqa: S603 - our own list
            (folder / DONE).touch()
        return interpreter

    def call(self, store: Path, request: Mapping[str, Any], timeout: float) -> list[dict[str, Any]]:
        """The objects that its program prints for a request; an error is one more, its last line alone.

        Args:
            store: where environments live.
            request: goes to standard input as JSON.
            timeout: seconds.
        """
        done = subprocess.run(  # noqa: S603 - our own program
            [self.python(store), str(INSIDE / f"{self.program}.py")],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            check=False,
        )
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode:
            found.append({"error": last_line(done.stderr.splitlines())})
        return found


def last_line(lines: Sequence[str]) -> str:
    """The last line of a traceback that says something."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


PACK_ITSELF = "llama-index-packs-diff-private-simple-dataset==0.4.1"

ACCOUNTANTS = Environment(
    "accountants",
    ("autodp==0.2.3.1", "dp-accounting==0.6.0", "opendp==0.16.0", "prv-accountant==0.2.0"),
    "accountants",
)
INVINK = Environment("invink_package", ("torch==2.13.0+cpu", "invink==0.1.0"), "invink_package")
PACK = Environment("llama_pack", (PACK_ITSELF, "llama-index-core==0.13.6"), "llama_pack")
PACK_NEWEST = Environment("llama_pack_newest", (PACK_ITSELF, "llama-index-core==0.14.25"), "llama_pack")
