"""Conversion of a model's weights to a form that evaluates whole prompts faster than some types do."""

from __future__ import annotations

import ctypes
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "file"
"""The weights as the file has them."""

AUTO = "auto"
"""The form that reads prompts fastest here, or that of the caller whose worker this is."""

FILE_TYPES = {
    "bf16": "LLAMA_FTYPE_MOSTLY_BF16",
    "f16": "LLAMA_FTYPE_MOSTLY_F16",
    "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0",
}
"""llama.cpp's names for the forms that weights can be converted to."""

OPEN_FILES = Path("/proc/self/fd")
"""Where Linux names this process's open files."""


@contextmanager
def converted(library: Any, path: Path, weights: str) -> Iterator[Path]:
    """Yield a temporary GGUF file of the same model with its weights converted.

    The file is gone on exit, and on Linux if the process is killed, too. A model loaded from it stays usable:
    its pages remain mapped.

    Args:
        library: the `llama_cpp` module.
        path: the GGUF file.
        weights: a key of `FILE_TYPES`, or `FILE` for the file itself.

    Raises:
        BackendError: the form is unknown, llama.cpp cannot convert this file, or there is no folder for
            temporary files.
    """
    if weights == FILE:
        yield path
        return
    if weights not in FILE_TYPES:
        raise BackendError(f"unknown weights {weights!r}; choose auto, {FILE}, {', '.join(FILE_TYPES)}")
    parameters = library.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    parameters.ftype = getattr(library, FILE_TYPES[weights])
    with _temporary(path.name) as target:
        status = library.llama_model_quantize(
            str(path).encode(), str(target).encode(), ctypes.byref(parameters)
        )
        if status != 0:
            raise BackendError(
                f"llama.cpp cannot convert {str(path)!r} to {weights}: is there room for it in "
                f"{tempfile.gettempdir()!r}?"
            )
        yield target


@contextmanager
def _temporary(name: str) -> Iterator[Path]:
    """Yield the path of a temporary file, which has no entry in a folder where Linux names open files."""
    with ExitStack() as stack:
        try:
            if OPEN_FILES.is_dir():
                file = stack.enter_context(tempfile.TemporaryFile())
                target = OPEN_FILES / str(file.fileno())
            else:
                folder = tempfile.TemporaryDirectory(prefix="dpfewshot-")
                target = Path(stack.enter_context(folder)) / name
        except OSError as error:
            raise BackendError(
                f"no temporary file can be made for converted weights ({error.strerror}): set TMPDIR, or "
                f"take weights={FILE!r}"
            ) from None
        yield target
