"""A GGUF model and its vocabulary, through the low-level functions of llama-cpp-python."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from dpfewshot.backends.llama_cpp.files import check_file
from dpfewshot.backends.machine import short_spin
from dpfewshot.backends.protocol import Tokens
from dpfewshot.backends.text import conversation
from dpfewshot.errors import BackendError, MissingExtra

FILE: Final = "file"
"""The weights as the file has them."""

AUTO: Final = "auto"
"""The form that reads prompts fastest here, or that of the caller whose worker this is."""

FILE_TYPES: Final = {
    "bf16": "LLAMA_FTYPE_MOSTLY_BF16",
    "f16": "LLAMA_FTYPE_MOSTLY_F16",
    "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0",
}
"""llama.cpp's names for the forms that weights can be converted to."""

OPEN_FILES = Path("/proc/self/fd")
"""Where Linux names this process's open files."""

ALL_LAYERS: Final = 2**31 - 1
"""More layers than any model has."""

# llama.cpp logs paths and, at some levels, prompt text. What drops a message is native code, without
# effect: Python code would raise a pending KeyboardInterrupt, which ctypes swallows.
_drop_message = ctypes.cast(
    ctypes.CDLL(None).abs, ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
)


@cache
def load_library() -> Any:
    """Import `llama_cpp`, and silence llama.cpp's own log for the whole process.

    Raises:
        MissingExtra: llama-cpp-python is not installed.
        BackendError: its shared library does not load.
    """
    try:
        with short_spin():
            import llama_cpp
    except ImportError as error:
        raise MissingExtra("LlamaCpp", "llama-cpp") from error
    except (OSError, RuntimeError) as error:
        raise BackendError(
            "llama-cpp-python is installed, but its shared library does not load: install it again"
        ) from error
    llama_cpp.llama_log_set(_drop_message, None)
    llama_cpp.llama_backend_init()
    return llama_cpp


class LlamaModel:
    """A GGUF model in memory.

    Args:
        path: the GGUF file.
        gpu_layers: layers to put on the GPU: 0 for none, -1 for all.
        weights: the form to convert the weights to, see `converted`.

    Attributes:
        library: the `llama_cpp` module.
        handle: the `llama_model` pointer; None once closed.
        vocabulary_size: V.
        weight_count: the number of weights.
        bos: the token that the model wants in front of every prompt; None if it wants none.
        end_token_ids: the tokens that end a text.
        trained_tokens: the context length that the model was trained for, in tokens.
        on_gpu: whether some layers are on a GPU.

    Raises:
        MissingExtra: llama-cpp-python is not installed.
        BackendError: the file does not exist, is not GGUF or holds a model that this backend cannot evaluate;
            or this build of llama.cpp cannot use a GPU and `gpu_layers` is not 0.
    """

    def __init__(self, path: Path, gpu_layers: int = 0, weights: str = FILE) -> None:
        self.handle: Any = None
        check_file(path)
        self.library = library = load_library()
        self.path = path
        self.weights = weights
        self.on_gpu = gpu_layers != 0
        with converted(library, path, weights) as file:
            self.handle = _load(library, file, gpu_layers)
        self._vocabulary = library.llama_model_get_vocab(self.handle)
        self.vocabulary_size: int = library.llama_vocab_n_tokens(self._vocabulary)
        self.weight_count: int = library.llama_model_n_params(self.handle)
        self.trained_tokens: int = library.llama_model_n_ctx_train(self.handle)
        wants_bos = library.llama_vocab_get_add_bos(self._vocabulary)
        self.bos: int | None = library.llama_vocab_bos(self._vocabulary) if wants_bos else None
        self.end_token_ids = frozenset(
            token
            for token in range(self.vocabulary_size)
            if library.llama_vocab_is_eog(self._vocabulary, token)
        )

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`: nothing is added, and special tokens stay text."""
        return self._tokens(text, special=False)

    def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text: nothing is added, and special tokens are parsed."""
        return self._tokens(text, special=True)

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation in the file's chat template.

        Raises:
            BackendError: the file has none, or it refuses the conversation.
        """
        template = self.library.llama_model_chat_template(self.handle, None)
        names = (self.library.llama_vocab_bos, self.library.llama_vocab_eos)
        ends = (name(self._vocabulary) for name in names)  # -1 if the vocabulary has no such token
        bos, eos = ("" if token < 0 else self.detokenize([token]) for token in ends)
        return conversation(template and template.decode(errors="replace"), contents, bos=bos, eos=eos)

    def _tokens(self, text: str, *, special: bool) -> list[int]:
        # A lone surrogate must not raise: whether a call fails must not depend on a record's text.
        data = text.encode("utf-8", errors="replace")
        count = len(data) + 8
        while True:
            tokens = (ctypes.c_int32 * count)()
            found = self.library.llama_tokenize(
                self._vocabulary, data, len(data), tokens, count, False, special
            )
            if found >= 0:
                return list(tokens[:found])
            count = -found

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`: special tokens are spelled out, broken UTF-8 is replaced."""
        return b"".join(map(self._piece, tokens)).decode("utf-8", errors="replace")

    def _piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            found = self.library.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, True)
            if found >= 0:
                return buffer.raw[:found]
            size = -found

    def vocabulary_hash(self) -> str:
        """Return the SHA-256 of the vocabulary: every token's length and bytes, in order."""
        whole = hashlib.sha256()
        for piece in map(self._piece, range(self.vocabulary_size)):
            whole.update(len(piece).to_bytes(4, "little") + piece)
        return whole.hexdigest()

    def close(self) -> None:
        """Free the model. Free its contexts first."""
        if self.handle is not None:
            self.library.llama_model_free(self.handle)
            self.handle = None


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
    with ExitStack() as stack:
        target = _temporary(stack, path.name)
        status = library.llama_model_quantize(
            str(path).encode(), str(target).encode(), ctypes.byref(parameters)
        )
        if status != 0:
            raise BackendError(
                f"llama.cpp cannot convert {str(path)!r} to {weights}: is there room for it in "
                f"{tempfile.gettempdir()!r}?"
            )
        yield target


def _temporary(stack: ExitStack, name: str) -> Path:
    """Return the path of a temporary file, which has no entry in a folder where Linux names open files."""
    try:
        if OPEN_FILES.is_dir():
            return OPEN_FILES / str(stack.enter_context(tempfile.TemporaryFile()).fileno())
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpfewshot-"))) / name
    except OSError as error:
        raise BackendError(
            f"no temporary file can be made for converted weights ({error.strerror}): set TMPDIR, or "
            f"take weights={FILE!r}"
        ) from None


def _load(library: Any, path: Path, gpu_layers: int) -> Any:
    if gpu_layers != 0 and not library.llama_supports_gpu_offload():
        raise BackendError(
            f"gpu_layers={gpu_layers}: this build of llama-cpp-python has no GPU support. Use gpu_layers=0, "
            "or rebuild it: CMAKE_ARGS='-DGGML_CUDA=on' pip install --force-reinstall llama-cpp-python"
        )
    parameters = library.llama_model_default_params()
    parameters.n_gpu_layers = ALL_LAYERS if gpu_layers < 0 else gpu_layers
    model = library.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise BackendError(
            f"llama.cpp cannot load the model file {str(path)!r}: it is damaged, needs more memory, "
            "or has an architecture that this llama-cpp-python does not support"
        )
    # Steps rewind a sequence by one token: a cache of keys and values allows it, a recurrent state does not.
    unsuited = (
        library.llama_model_has_encoder,
        library.llama_model_is_recurrent,
        library.llama_model_is_hybrid,
        library.llama_model_is_diffusion,
    )
    if any(is_so(model) for is_so in unsuited):
        library.llama_model_free(model)
        raise BackendError(f"model file {str(path)!r} is not a decoder-only transformer: choose one that is")
    return model
