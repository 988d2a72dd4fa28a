"""A llama context that gives every sequence a key-value stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.llama_cpp.model import LlamaModel
from dpfewshot.backends.protocol import Tokens
from dpfewshot.backends.streams.backend import Columns
from dpfewshot.backends.streams.pool import TokenCounts
from dpfewshot.errors import BackendError

Row: TypeAlias = NDArray[np.float32]
"""The logits of one prompt: a view, which the next call overwrites."""

CELL_BLOCK = 256
"""llama.cpp rounds the length of a stream up to a multiple of this many tokens."""

UBATCH = 512
"""The most tokens that one graph evaluates; a longer prompt takes several graphs."""


class LogSoftmax:
    """Log-softmax of one row of V logits, in double precision and always in the same memory.

    A vectorised sum may be split according to the address where a row begins, so the address stays fixed,
    and lanes take turns.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self._shifted = np.empty(vocabulary_size)
        self._exponentials = np.empty(vocabulary_size)
        self._lock = Lock()

    def __call__(self, logits: Row, columns: Columns) -> NDArray[np.float64]:
        """Return the natural-log probabilities of `columns`; all NaN if a logit is NaN or +inf."""
        shifted = self._shifted
        with self._lock, np.errstate(invalid="ignore"):
            shifted[:] = logits
            shifted -= shifted.max()
            np.exp(shifted, out=self._exponentials)
            logprobs: NDArray[np.float64] = shifted[columns] - np.log(self._exponentials.sum())
            return logprobs


class KVStreams:
    """One llama context: flash attention off, one stream per sequence (`kv_unified=False`).

    Streams share no cell, so a sequence attends to its own stream alone. The result of a decode call
    depends on the shape of the call, on its tokens and on their streams.

    Args:
        cells: tokens that a stream holds, a multiple of `CELL_BLOCK`.

    Raises:
        BackendError: llama.cpp cannot make the context, usually for lack of memory.
    """

    def __init__(
        self, model: LlamaModel, *, streams: int, cells: int, threads: int, counts: TokenCounts
    ) -> None:
        self.cells = cells
        self.failed = False
        self._library = library = model.library
        self._vocabulary_size = model.vocabulary_size
        self._counts = counts
        self._context = library.llama_init_from_model(
            model.handle, _parameters(library, streams, cells, threads, on_gpu=model.on_gpu)
        )
        if not self._context:
            raise BackendError(
                f"llama.cpp cannot make a context of {streams} streams of {cells} tokens: "
                "lower kept_prompts, context_tokens or threads"
            )
        self._memory = library.llama_get_memory(self._context)
        self._batch = _batch(library, size=max(cells, streams))

    def copy(self, source: int, target: int) -> None:
        """Replace the whole buffer of `target` by a copy of `source`.

        llama.cpp makes the copy at the start of the next decode call.
        """
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def rewind(self, stream: int, length: int) -> None:
        """Drop the tokens after the first `length` of a stream."""
        if not self._library.llama_memory_seq_rm(self._memory, stream, length, -1):
            self._fail("llama.cpp cannot rewind a stream")

    def extend(self, stream: int, start: int, tokens: Tokens, *, dummies: bool = False) -> Row:
        """Evaluate `tokens` at positions `start`, `start` + 1, ... of one stream; see `Streams.extend`."""
        for index, token in enumerate(tokens):
            self._set(index, token, start + index, stream, output=index == len(tokens) - 1)
        self._decode(len(tokens))
        self._counts.add(**{"dummies" if dummies else "tokens": len(tokens)})
        return self._logits(len(tokens) - 1)

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int], active: int) -> list[Row]:
        """Evaluate one token in each of the streams `first`, `first` + 1, ...; see `Streams.step`.

        llama.cpp evaluates consecutive streams as one graph and splits it at every gap in their numbers.
        These have no gap, so the shape of the computation is always `len(tokens)` streams by one token.
        """
        for index, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            self._set(index, token, position, first + index, output=True)
        self._decode(len(tokens))
        self._counts.add(tokens=active, dummies=len(tokens) - active)
        return [self._logits(index) for index in range(active)]

    def close(self) -> None:
        """Free the context."""
        if self._context is not None:
            self._library.llama_batch_free(self._batch)
            self._library.llama_free(self._context)
            self._context = None
            self.failed = True

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


def _parameters(library: Any, streams: int, cells: int, threads: int, *, on_gpu: bool) -> Any:
    parameters = library.llama_context_default_params()
    parameters.n_ctx = cells * streams
    parameters.n_seq_max = streams
    parameters.n_batch = max(cells, streams)
    parameters.n_ubatch = min(UBATCH, parameters.n_batch)
    parameters.n_outputs_max = streams
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.kv_unified = False
    parameters.swa_full = True  # else a sliding window's cache cannot be rewound
    parameters.offload_kqv = parameters.op_offload = on_gpu
    parameters.no_perf = True
    return parameters


def _batch(library: Any, size: int) -> Any:
    batch = library.llama_batch_init(size, 0, 1)
    for index in range(size):
        batch.n_seq_id[index] = 1
    return batch
