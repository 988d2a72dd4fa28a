"""A model file by its name on the Hugging Face hub, or in Ollama."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dpfewshot.backends.llama_cpp.ollama import PREFIX, ollama_file
from dpfewshot.errors import BackendError, MissingExtra

_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)/((?:[\w-][\w.-]*/)*[\w-][\w.-]*\.gguf)", re.ASCII)


def local_file(model: str | os.PathLike[str]) -> Path:
    """Return the path of a model: the one given, or that of the hub's file, which is fetched once and cached.

    A text such as "org/repository/file.gguf" is a name on the hub, unless a file or its first folder is here.
    `huggingface_hub` fetches it: its environment variables hold, such as HF_HUB_OFFLINE and HF_ENDPOINT.
    "ollama:NAME" is the file that Ollama has fetched (`ollama.ollama_file`).

    Raises:
        MissingExtra: it is a name on the hub, and `huggingface_hub` is not installed.
        BackendError: the hub has no such file, or cannot be reached; or Ollama has none.
    """
    if isinstance(model, str) and model.startswith(PREFIX):
        return ollama_file(model.removeprefix(PREFIX))
    path = Path(model)
    name = _NAME.fullmatch(model) if isinstance(model, str) else None
    if name is None or path.exists() or Path(path.parts[0]).exists():
        return path
    repository, file = name.groups()
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingExtra(
            f"model {model!r}, which is no file here and may be one of the hub,", "hub"
        ) from None
    try:
        return Path(hf_hub_download(repository, file))
    except Exception as error:
        raise BackendError(
            f"model {model!r} is no file here, and the Hugging Face hub did not give it "
            f"({type(error).__name__}): check the path or the name, or download the file yourself"
        ) from error
