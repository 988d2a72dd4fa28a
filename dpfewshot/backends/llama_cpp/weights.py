"""Conversion of a model's weights to a form that evaluates whole prompts faster than some types do."""

from __future__ import annotations

import ctypes
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "file"
"""The weights as the file has them."""

FILE_TYPES = {
    "bf16": "LLAMA_FTYPE_MOSTLY_BF16",
    "f16": "LLAMA_FTYPE_MOSTLY_F16",
    "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0",
}
"""llama.cpp's names for the forms that weights can be converted to."""


@contextmanager
def converted(library: Any, path: Path, weights: str) -> Iterator[Path]:
    """Yield a temporary GGUF file of the same model with its weights converted.

    The file is deleted on exit. A model loaded from it stays usable: its pages remain mapped.

    Args:
        library: the `llama_cpp` module.
        path: the GGUF file.
        weights: a key of `FILE_TYPES`, or `FILE` for the file itself.

    Raises:
        BackendError: the form is unknown, or llama.cpp cannot convert this file.
    """
    if weights == FILE:
        yield path
        return
    if weights not in FILE_TYPES:
        raise BackendError(f"unknown weights {weights!r}; choose auto, {FILE}, {', '.join(FILE_TYPES)}")
    parameters = library.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    parameters.ftype = getattr(library, FILE_TYPES[weights])
    with tempfile.TemporaryDirectory(prefix="dpfewshot-") as folder:
        target = Path(folder) / path.name
        status = library.llama_model_quantize(
            str(path).encode(), str(target).encode(), ctypes.byref(parameters)
        )
        if status != 0:
            raise BackendError(
                f"llama.cpp cannot convert {str(path)!r} to {weights}: is there room for it in {folder!r}?"
            )
        yield target
