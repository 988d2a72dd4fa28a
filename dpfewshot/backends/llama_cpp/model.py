"""A GGUF model, its vocabulary and its contexts, through llama.cpp's functions."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.llama_cpp.library import FILE_TYPES, Library, load_library
from dpfewshot.backends.protocol import Tokens
from dpfewshot.backends.streams.backend import Columns
from dpfewshot.backends.text import conversation, readable
from dpfewshot.errors import BackendError, MissingExtra

FILE: Final = "file"
"""The weights as the file has them."""

ALL_LAYERS: Final = 2**31 - 1
"""More layers than any model has."""

CELL_BLOCK = 256
"""llama.cpp rounds the length of a stream up to a multiple of this many tokens."""

UBATCH = 512
"""The most tokens that one graph evaluates; a longer prompt takes several graphs."""

Row: TypeAlias = NDArray[np.float32]
"""The logits of one prompt: a view, which the next call overwrites."""


class LlamaModel:
    """A GGUF model in memory, a `StreamModel`.

    Args:
        threads: worker threads, which lanes share.
        gpu_layers: layers to put on the GPU: 0 for none, -1 for all.
        weights: the form to convert the weights to, see `converted`.

    Attributes:
        handle: the `llama_model` pointer; None once closed.
    """

    def __init__(self, path: Path, threads: int, gpu_layers: int = 0, weights: str = FILE) -> None:
        self.library = library = load_library()
        self.path = path
        self.threads = threads
        self.on_gpu = gpu_layers != 0
        with converted(library, path, weights) as file:
            self.handle: Any = _load(library, file, gpu_layers)
        self._vocabulary = library.llama_model_get_vocab(self.handle)
        self.vocabulary_size: int = library.llama_vocab_n_tokens(self._vocabulary)
        self.longest: int | None = library.llama_model_n_ctx_train(self.handle)
        self.most_streams: int = library.llama_max_parallel_sequences()
        wants_bos = library.llama_vocab_get_add_bos(self._vocabulary)
        self.bos: int | None = library.llama_vocab_bos(self._vocabulary) if wants_bos else None
        self.end_token_ids = frozenset(
            token
            for token in range(self.vocabulary_size)
            if library.llama_vocab_is_eog(self._vocabulary, token)
        )
        self._shifted = np.empty(self.vocabulary_size)
        self._exponentials = np.empty(self.vocabulary_size)
        self._softmax_lock = Lock()

    def open_streams(self, streams: int, tokens: int, lanes: int) -> KVStreams:
        """Return a context with empty streams of at least this many tokens, for one of some lanes."""
        cells = -(-tokens // CELL_BLOCK) * CELL_BLOCK
        return KVStreams(self, streams=streams, cells=cells, threads=self.threads // lanes)

    def log_softmax(self, logits: Row, columns: Columns) -> NDArray[np.float64]:
        """Return the natural-log probabilities of `columns`; all NaN if a logit is NaN or +inf.

        They are computed in double precision and always in the same memory, where lanes take turns: a
        vectorised sum may be split according to the address where a row begins.
        """
        shifted = self._shifted
        with self._softmax_lock, np.errstate(invalid="ignore"):
            shifted[:] = logits
            shifted -= shifted.max()
            np.exp(shifted, out=self._exponentials)
            logprobs: NDArray[np.float64] = shifted[columns] - np.log(self._exponentials.sum())
            return logprobs

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`: nothing is added, and special tokens are parsed or stay text."""
        data = readable(text).encode()
        count = len(data) + 8
        while True:
            tokens = (ctypes.c_int32 * count)()
            found = self.library.llama_tokenize(
                self._vocabulary, data, len(data), tokens, count, False, special
            )
            if found >= 0:
                return list(tokens[:found])
            count = -found

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation in the file's chat template."""
        template = self.library.llama_model_chat_template(self.handle, None)
        names = (self.library.llama_vocab_bos, self.library.llama_vocab_eos)
        ends = (name(self._vocabulary) for name in names)  # -1 if the vocabulary has no such token
        bos, eos = ("" if token < 0 else self.detokenize([token]) for token in ends)
        return conversation(template and template.decode(errors="replace"), contents, bos=bos, eos=eos)

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
def converted(library: Library, path: Path, weights: str) -> Iterator[Path]:
    """Yield a temporary GGUF file of the same model with its weights converted; for `FILE`, the file itself.

    No folder names it, so that it is gone on exit, and if the process is killed, too. A model loaded from it
    stays usable: its pages remain mapped.
    """
    if weights == FILE:
        yield path
        return
    if weights not in FILE_TYPES:
        raise BackendError(f"unknown weights {weights!r}; choose {FILE}, {', '.join(FILE_TYPES)}")
    if not library.converts:
        raise MissingExtra(f"weights={weights!r}", "llama-cpp")
    parameters = library.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    parameters.ftype = getattr(library, FILE_TYPES[weights])
    try:
        temporary = tempfile.TemporaryFile()  # noqa: SIM115 - entered below
    except OSError as error:
        raise BackendError(
            f"no temporary file can be made for converted weights ({error.strerror}): set TMPDIR, or "
            f"take weights={FILE!r}"
        ) from None
    with temporary:
        target = f"/proc/self/fd/{temporary.fileno()}"
        status = library.llama_model_quantize(str(path).encode(), target.encode(), ctypes.byref(parameters))
        if status != 0:
            raise BackendError(
                f"llama.cpp cannot convert {str(path)!r} to {weights}: is there room for it in "
                f"{tempfile.gettempdir()!r}?"
            )
        yield Path(target)


def _load(library: Library, path: Path, gpu_layers: int) -> Any:
    if gpu_layers != 0 and not library.llama_supports_gpu_offload():
        raise BackendError(
            f"gpu_layers={gpu_layers}: this build of llama.cpp has no GPU support. Use gpu_layers=0, or "
            "build one: CMAKE_ARGS='-DGGML_CUDA=on' pip install --force-reinstall llama-cpp-python"
        )
    parameters = library.llama_model_default_params()
    parameters.n_gpu_layers = ALL_LAYERS if gpu_layers < 0 else gpu_layers
    # Kernels for AMX ended the process at their first instruction, ldtilecfg, where Debian 12's GCC 12 had
    # compiled them. Without these buffers they are not used.
    parameters.use_extra_bufts = b"AMX_INT8 = 1" not in library.llama_print_system_info()
    model = library.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise BackendError(
            f"llama.cpp cannot load the model file {str(path)!r}: it is damaged, needs more memory, "
            "or has an architecture that this llama.cpp does not support"
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


# ---- contexts --------------------------------------------------------------------------------------------


class KVStreams:
    """One llama context: flash attention off, one stream per sequence (`kv_unified=False`).

    Streams share no cell, so a sequence attends to its own stream alone. The result of a decode call
    depends on the shape of the call, on its tokens and on their streams.

    Args:
        cells: tokens that a stream holds, a multiple of `CELL_BLOCK`.
    """

    def __init__(self, model: LlamaModel, *, streams: int, cells: int, threads: int) -> None:
        self.cells = cells
        self.failed = False
        self._library = library = model.library
        self._vocabulary_size = model.vocabulary_size
        parameters = library.llama_context_default_params()
        parameters.n_ctx = cells * streams
        parameters.n_seq_max = streams
        parameters.n_batch = size = max(cells, streams)
        parameters.n_ubatch = min(UBATCH, size)
        parameters.n_outputs_max = streams
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.kv_unified = False
        parameters.swa_full = True  # else a sliding window's cache cannot be rewound
        parameters.offload_kqv = parameters.op_offload = model.on_gpu
        parameters.no_perf = True
        self._context = library.llama_init_from_model(model.handle, parameters)
        if not self._context:
            raise BackendError(
                f"llama.cpp cannot make a context of {streams} streams of {cells} tokens: "
                "lower kept_prompts, context_tokens or threads"
            )
        self._memory = library.llama_get_memory(self._context)
        self._batch = library.llama_batch_init(size, 0, 1)
        for index in range(size):
            self._batch.n_seq_id[index] = 1

    def copy(self, source: int, target: int) -> None:
        """Copy a whole stream; llama.cpp does so at the start of the next decode call."""
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def extend(self, stream: int, start: int, tokens: Tokens) -> Row:
        """Evaluate `tokens` at positions `start`, `start` + 1, ... of one stream; see `Streams.extend`."""
        self._rewind(stream, start)
        for index, token in enumerate(tokens):
            self._set(index, token, start + index, stream, output=index == len(tokens) - 1)
        self._decode(len(tokens))
        return self._logits(len(tokens) - 1)

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int], active: int) -> list[Row]:
        """Evaluate one token in each of the streams `first`, `first` + 1, ...; see `Streams.step`.

        llama.cpp evaluates consecutive streams as one graph and splits it at every gap in their numbers.
        These have no gap, so the shape of the computation is always `len(tokens)` streams by one token.
        """
        for index, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            self._rewind(first + index, position)
            self._set(index, token, position, first + index, output=True)
        self._decode(len(tokens))
        return [self._logits(index) for index in range(active)]

    def close(self) -> None:
        """Free the context."""
        if self._context is not None:
            self._library.llama_batch_free(self._batch)
            self._library.llama_free(self._context)
            self._context = None
            self.failed = True

    def _rewind(self, stream: int, length: int) -> None:
        """Drop the tokens after the first `length` of a stream."""
        if not self._library.llama_memory_seq_rm(self._memory, stream, length, -1):
            self._fail("llama.cpp cannot rewind a stream")

    def _set(self, index: int, token: int, position: int, stream: int, *, output: bool) -> None:
        batch = self._batch
        batch.token[index] = token
        batch.pos[index] = position
        batch.seq_id[index][0] = stream
        batch.logits[index] = output

    def _decode(self, count: int) -> None:
        self._batch.n_tokens = count
        status = self._library.llama_decode(self._context, self._batch)
        if status != 0:
            self._fail(f"llama_decode failed with status {status}")

    def _logits(self, index: int) -> Row:
        pointer = self._library.llama_get_logits_ith(self._context, index)
        if not pointer:
            self._fail("llama.cpp returned no logits")
        return np.ctypeslib.as_array(pointer, shape=(self._vocabulary_size,))

    def _fail(self, what: str) -> None:
        self.failed = True
        raise BackendError(f"{what}: the caches are lost, try again", retryable=True)
