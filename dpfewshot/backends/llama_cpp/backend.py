"""llama.cpp in process, so that one prompt's answer never depends on another prompt."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from dpfewshot import __version__
from dpfewshot.backends import conformance
from dpfewshot.backends.llama_cpp.model import LlamaModel
from dpfewshot.backends.llama_cpp.step_check import VERSION, check_steps
from dpfewshot.backends.llama_cpp.streams import CELL_BLOCK, KVStreams, LogSoftmax
from dpfewshot.backends.llama_cpp.verdicts import (
    digest_of,
    keep_verdict,
    kept_verdict,
    processor,
    steering_variables,
)
from dpfewshot.backends.processors import usable_processors
from dpfewshot.backends.streams.backend import StreamBackend, check_settings
from dpfewshot.backends.streams.pools import groups_within
from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpfewshot.backends.streams.protocol import Logits


class LlamaCpp(StreamBackend):
    """A GGUF model, evaluated by llama.cpp through llama-cpp-python's low-level functions.

    A prompt is evaluated in a decode call of its own, in its own key-value stream, after a copy of
    the public prefix: its answer is a function of that prompt, the prefix and these settings, by
    construction. The further tokens of a block are evaluated for `decode_batch` streams at a time,
    filled up with public dummies, so that the shape of the computation is the same whoever else is
    there. That rests on kernels which treat every row of one shape alike. So the constructor tries it on
    the loaded model, with public prompts and in the streams of a generation: where bits move, a warning
    says so and prompts take their steps one by one, as with `decode_batch=1`, which needs no trial. What
    was found on a CPU is kept in the user's cache (`~/.cache/dpfewshot`) for this very file, build of
    llama.cpp, processor and settings.

    If the model asks for a beginning-of-sequence token, it is put in front of every prompt.

    Args:
        model: the GGUF file.
        context_tokens: the longest prompt, with the tokens that a block adds to it. A longer prompt is
            a row of NaN, for every token of its block.
        kept_prompts: private prompts of a block whose streams are kept from token to token, rounded up
            to whole groups of `decode_batch` - 1. More than that are evaluated afresh for every token:
            the same answers, more time. Draws are random in size: take a fifth more than their mean.
        decode_batch: streams that take a step together, one of them a dummy: 1, or a multiple of 8.
        threads: worker threads; None for as many as the process may use, a container's share counted.
        gpu_layers: layers of the model that are put on the GPU: 0 for none, -1 for all.
        weights: "bf16" or "f16" converts the weights when the model is loaded; None leaves them as they
            are. Some quantised types (Q4_1, for one) have no fast kernels for whole prompts, where 16-bit
            floats do: "bf16" on a CPU with AVX512-BF16, "f16" elsewhere. It takes seconds, two bytes of
            memory a weight, and as much room for temporary files.

    Attributes:
        context_tokens: as above.
        batch_invariant: True on the CPU, see above. On a GPU, what the conformance suite finds for the way
            in which prompts are evaluated here.

    Memory, taken while steps are tried and when the first block of more than one token is opened:
    `kept_prompts` + 25 streams of `context_tokens`, rounded up to 256, times the model's bytes a token.
    SmolLM2-135M has 23 kB a token: 1.2 GB by default, 0.7 GB at `context_tokens=256, kept_prompts=90`.

    Loading silences llama.cpp's own log for the whole process. One call computes at a time; threads wait.

    Raises:
        MissingExtra: llama-cpp-python is not installed.
        BackendError: the file is missing or no model, or a setting cannot be honoured.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        context_tokens: int = 512,
        kept_prompts: int = 75,
        decode_batch: int = 16,
        threads: int | None = None,
        gpu_layers: int = 0,
        weights: str | None = None,
    ) -> None:
        self._threads = usable_processors() if threads is None else threads
        check_settings(context_tokens, kept_prompts, decode_batch)
        if self._threads < 1:
            raise BackendError(f"threads={threads}: at least 1")
        self._loaded = loaded = LlamaModel(Path(model), gpu_layers, weights)
        super().__init__(
            loaded, context_tokens=context_tokens, kept_prompts=kept_prompts, decode_batch=decode_batch
        )
        if self._groups_of_a_pool(decode_batch) < 1:
            self.close()
            raise BackendError(
                f"decode_batch={decode_batch} is more than llama.cpp has streams for: lower it"
            )
        if context_tokens > loaded.trained_tokens:
            self.close()
            raise BackendError(
                f"context_tokens={context_tokens} is more than the {loaded.trained_tokens} tokens "
                "that the model was trained for"
            )
        self._row_log_softmax = LogSoftmax(loaded.vocabulary_size)
        self.batch_invariant = False
        try:
            self._settle(weights)
        except BaseException:
            self.close()
            raise

    @property
    def dummy_tokens_evaluated(self) -> int:
        """Dummies evaluated so far, beside `tokens_evaluated`. For the operator alone, like it."""
        return self._tally.dummies

    def describe(self) -> str:
        """What this is, in a few words, for `dpfewshot doctor`."""
        where = "on a GPU" if self._loaded.on_gpu else f"on the CPU, {self._threads} threads"
        steps = ", prompts one by one, as steps together move bits here" if self._fell_back else ""
        return f"llama.cpp {where}, {self._loaded.path.name}{steps}"

    def _settle(self, weights: str | None) -> None:
        """Find how prompts take their steps here."""
        on_gpu = self._loaded.on_gpu
        self._fell_back = self._decode_batch > 1 and not (
            self._tried() if on_gpu else self._known_or_tried(weights)
        )
        if self._fell_back:
            warnings.warn(
                f"llama.cpp's steps for {self._decode_batch} prompts together are not batch invariant here: "
                "prompts take their steps one by one, as with decode_batch=1, which takes longer",
                RuntimeWarning,
                stacklevel=3,
            )
            self._decode_batch = 1
        self.batch_invariant = not on_gpu or self._found_invariant()

    def _known_or_tried(self, weights: str | None) -> bool:
        facts = build_facts(self._loaded) | {
            "context_tokens": self.context_tokens,
            "kept_prompts": self._kept_prompts,
            "decode_batch": self._decode_batch,
            "groups_of_a_pool": self._groups_of_a_pool(self._decode_batch),
            "threads": self._threads,
            "weights": weights,
        }
        known = kept_verdict(facts)
        if known is None:
            known = self._tried()
            keep_verdict(facts, passed=known)
        return known

    def _tried(self) -> bool:
        """Whether steps give a prompt the same bits in any company, in streams that are freed afterwards."""
        finding = check_steps(self, context_tokens=self.context_tokens, decode_batch=self._decode_batch)
        while self._pools:
            self._pools.popitem()[1].close()
        self._tally.tokens = self._tally.dummies = 0
        return finding.passed

    def _open_streams(self, *, streams: int) -> KVStreams:
        cells = -(-self.context_tokens // CELL_BLOCK) * CELL_BLOCK
        return KVStreams(self._loaded, streams=streams, cells=cells, threads=self._threads, tally=self._tally)

    def _log_softmax(self, logits: Logits, columns: NDArray[np.intp] | slice) -> NDArray[np.float64]:
        return self._row_log_softmax(logits, columns)

    def _groups_of_a_pool(self, size: int) -> int:
        return groups_within(self._loaded.library.llama_max_parallel_sequences(), size)

    def _found_invariant(self) -> bool:
        """Whether the conformance suite finds that answers depend on no other prompt, on this very device."""
        prefix, suffixes, released = conformance.sample_prompts(self)
        findings = (
            conformance.check_batch_invariance(self, [[*prefix, *suffix] for suffix in suffixes]),
            conformance.check_block_invariance(self, prefix, suffixes, released, support=()),
        )
        return all(finding.passed for finding in findings)


def build_facts(model: LlamaModel) -> dict[str, str | int | None]:
    """What a verdict on a model rests on, beside the settings: file, build of llama.cpp, processor."""
    libraries = sorted((Path(model.library.__file__).parent / "lib").glob("*"))
    return {
        "check": VERSION,
        "package": __version__,
        "model": digest_of(model.path),
        "llama_cpp": model.library.__version__,
        "build": digest_of(*(path for path in libraries if path.is_file())),
        "system": model.library.llama_print_system_info().decode(),
        "processor": processor(),
        "environment": steering_variables(),
    }
