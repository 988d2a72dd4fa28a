"""A model file by the name that it has in Ollama, in the folder where Ollama keeps what it fetched."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from dpfewshot.errors import BackendError

PREFIX: Final = "ollama:"

_NAME: Final = re.compile(
    r"(?:(?P<host>[\w-][\w.-]*(?::\d+)?)/)??(?:(?P<space>[\w-][\w.-]*)/)?(?P<model>[\w-][\w.-]*)(?::(?P<tag>[\w-][\w.-]*))?",
    re.ASCII,
)
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_MODEL: Final = "application/vnd.ollama.image.model"
_CHANGES: Final = ("application/vnd.ollama.image.adapter", "application/vnd.ollama.image.tensor")
"""Layers without which the file is not the model: an adapter, and weights in another form."""

_PLACES: Final = (Path("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models"))
"""Of a user's Ollama, and of the service that its installer makes on Linux."""


def ollama_file(name: str) -> Path:
    """Return the GGUF file of a model that Ollama has fetched.

    Reads Ollama's manifest and needs no running server. The folder is that of the environment variable
    OLLAMA_MODELS, or else Ollama's usual ones.

    Args:
        name: as Ollama names it: "qwen2.5:1.5b", "someone/model:tag", "host/someone/model"; the tag "latest"
            may be left out.

    Raises:
        BackendError: the name is malformed; Ollama has not fetched the model; or it is not one GGUF file.
    """
    named = _NAME.fullmatch(name)
    if named is None:
        raise BackendError(f"{name!r} is not a name of Ollama's: write it as in {PREFIX}qwen2.5:1.5b")
    place = Path(
        "manifests",
        named["host"] or "registry.ollama.ai",
        named["space"] or "library",
        named["model"],
        named["tag"] or "latest",
    )
    folders = _folders()
    for folder in folders:
        manifest = _read(folder / place)
        if manifest is not None:
            return _blob(folder, name, manifest)
    looked = " or ".join(map(str, folders))
    raise BackendError(
        f"Ollama has no model {name!r} in {looked}, or this user may not read it: run ollama pull {name}, or "
        "set OLLAMA_MODELS to the folder of the server that has it"
    )


def _folders() -> list[Path]:
    chosen = os.environ.get("OLLAMA_MODELS")
    return [Path(chosen)] if chosen else [place.expanduser() for place in _PLACES]


def _read(path: Path) -> Any:
    """A manifest; None if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _blob(folder: Path, name: str, manifest: Any) -> Path:
    """The file of a manifest's only model layer."""
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    found = [layer for layer in layers or () if isinstance(layer, dict)]
    weights = [layer.get("digest") for layer in found if layer.get("mediaType") == _MODEL]
    digest = _DIGEST.fullmatch(str(weights[0])) if len(weights) == 1 else None
    if digest is None or any(layer.get("mediaType") in _CHANGES for layer in found):
        raise BackendError(
            f"Ollama's model {name!r} is not one GGUF file: it has an adapter, several files, or weights in "
            "another form. Use the model's original GGUF file"
        )
    return folder / "blobs" / f"sha256-{digest[1]}"
