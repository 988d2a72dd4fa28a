"""llama.cpp in this process, called so that no prompt's answer depends on another prompt."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from dpfewshot import __version__
from dpfewshot.backends import conformance, machine
from dpfewshot.backends.llama_cpp.files import check_file, local_file, shards_of
from dpfewshot.backends.llama_cpp.library import load_library
from dpfewshot.backends.llama_cpp.model import FILE, LlamaModel
from dpfewshot.backends.streams.backend import STRIDE, StreamBackend, Unchecked, Use, check_settings
from dpfewshot.backends.streams.threads import lanes_of
from dpfewshot.errors import BackendError
from dpfewshot.values import counted

VERSION: Final = 3
"""Incremented when a check changes, so that verdicts of older checks no longer count."""

WHOLE_PROMPTS: Final = 4
"""Prompts that take turns in the lanes: alone, in pairs, and in a crowd of 65."""

LONG: Final = 32
"""Tokens of the shortest of the longer whole prompts: about those of a private prompt behind its prefix."""

TURNS: Final = 4
"""How often each of the longer prompts stands in their crowd."""


class LlamaCpp(StreamBackend[LlamaModel]):
    """A GGUF model, evaluated by llama.cpp: llama-cpp-python's where it is installed, else xllamacpp's.

    A prompt is evaluated in a decode call of its own, in its own key-value stream, after a copy of the
    public prefix: by construction, its answer is a function of that prompt, the prefix and these settings.
    The prompts of a draw are evaluated in lanes, as many at a time as there are threads, up to eight: a lane
    is a context of its own over the one model. All lanes are alike, so any of them gives the same bits.
    Further tokens of a block are evaluated for `decode_batch` streams at a time, padded with public dummies,
    so that the shape of the computation is the same whatever the neighbours. That relies on kernels that
    treat every row of one shape alike, so it is checked on the loaded model before the first private prompts
    that need it, with public prompts in the streams of a generation. If bits change, it warns, and prompts
    take their steps one by one, as with `decode_batch=1`, which needs no check. Lanes are checked too. On a
    CPU the verdicts are cached for the user (`~/.cache/dpfewshot`) and hold for this file, build of
    llama.cpp, processor and settings; on a GPU the constructor checks.

    If the model asks for a beginning-of-sequence token, every prompt gets one in front.

    Args:
        model: the GGUF file: a path; or its name on the Hugging Face hub, "org/repository/file.gguf", if
            `dpfewshot[hub]` is installed; or a name as "qwen-0.5b", which `dpfewshot model get` fetched;
            or "ollama:NAME", which Ollama has fetched (`files.local_file`).
        context_tokens: the longest prompt, including the tokens that a block adds to it. A longer prompt
            gives a row of NaN for every token of its block.
        kept_prompts: how many private prompts of a block keep their streams from token to token, rounded up
            to whole groups of `decode_batch` - 1. Further prompts are evaluated afresh for every token: the
            same answers in more time. Draws vary in size: take a fifth more than their mean.
        decode_batch: streams that take a step together, one of them a dummy: 1, or a multiple of 8.
        threads: worker threads; None for as many as the process may use, within its container's CPU limit.
        gpu_layers: layers to put on the GPU: 0 for none, -1 for all.
        weights: "file" leaves them as they are; "bf16", "f16" and "q8_0" convert them when the model is
            loaded, which takes seconds, one or two bytes of memory per weight, and as much temporary disk
            space. Some quantised types, such as Q4_1, have no fast kernels for whole prompts. Only
            llama-cpp-python converts.

    Attributes:
        model_identity: "sha256:" and the SHA-256 of the GGUF file; of a model in several, that of theirs.
        tokenizer_identity: "sha256:" and the SHA-256 of the vocabulary (`LlamaModel.vocabulary_hash`).
        batch_invariant: True on the CPU, see above. On a GPU, whether the conformance checks passed for the
            way prompts are evaluated here.

    Memory: streams of `context_tokens`, rounded up to 256, times the model's bytes per token: 11 for public
    prompts, 54 more where several take steps, `kept_prompts` + 27 for private ones that do, and 7 for each of
    several lanes, allocated when such a block is opened. SmolLM2-135M needs 23 kB per token: by default
    0.8 GB for texts from a word histogram, 1.5 GB for private prompts.

    Loading silences llama.cpp's own log for the whole process. One call computes at a time; threads wait.

    Raises:
        MissingExtra: no library of llama.cpp is installed, or not one that converts weights, or not
            huggingface_hub for a name on the hub.
        BackendError: the file does not exist or holds no usable model, the hub or Ollama does not have it, or
            a setting is out of its range.
    """

    _fell_back = False

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        context_tokens: int = 512,
        kept_prompts: int = 75,
        decode_batch: int = 16,
        threads: int | None = None,
        gpu_layers: int = 0,
        weights: str = FILE,
    ) -> None:
        check_settings(context_tokens, kept_prompts, decode_batch)
        threads = machine.usable_processors() if threads is None else threads
        if threads < 1:
            raise BackendError(f"threads={threads}: at least 1")
        path = local_file(model)
        check_file(path)
        self._facts = build_facts(path)
        loaded = LlamaModel(path, threads, gpu_layers, weights)
        self.weights: str = weights
        self.model_identity = f"sha256:{self._facts['model']}"
        self.tokenizer_identity = f"sha256:{loaded.vocabulary_hash()}"
        super().__init__(
            loaded,
            context_tokens=context_tokens,
            kept_prompts=kept_prompts,
            decode_batch=decode_batch,
            lanes=1 if loaded.on_gpu else lanes_of(threads),
        )

    def describe(self) -> str:
        """Return the device, its threads and lanes, the model file and how it is evaluated."""
        model = self._model
        where = "on a GPU" if model.on_gpu else f"on the CPU, {counted(model.threads, 'thread')}"
        lanes = f", {self._lanes} prompts at a time" if self._lanes > 1 else ""
        steps = ", prompts one by one, since shared steps change bits here" if self._fell_back else ""
        form = "" if self.weights == FILE else f" with {self.weights} weights"
        return f"llama.cpp {where}{lanes}, {model.path.name}{form}{steps}"

    def _settle(self) -> None:
        """Check what the claim depends on: on the CPU, steps and lanes wait until somebody needs them."""
        if self._model.on_gpu:
            self._check_on_device()
        else:
            self.batch_invariant = True

    def _check_use(self, use: Use) -> None:
        """Check steps or lanes, in up to a minute. Who writes from a word histogram needs neither."""
        if self._model.on_gpu:
            return
        if use is Use.STEPS and self._decode_batch > 1 and not self._passes("steps", self._check_steps):
            self._step_one_by_one()
        if use is Use.WHOLE and not self._passes("lanes", self._check_lanes):
            warnings.warn(
                "llama.cpp's contexts change one another's bits here: prompts are evaluated one at a time, "
                "which is slower",
                RuntimeWarning,
                stacklevel=2,
            )
            self._close_pools(use)
            self._lanes = 1

    def _step_one_by_one(self) -> None:
        """Take each prompt's steps in calls of its own from now on, and say so."""
        warnings.warn(
            f"llama.cpp's steps of {self._decode_batch} prompts are not batch invariant here: "
            "prompts take their steps one by one, as with decode_batch=1, which is slower",
            RuntimeWarning,
            stacklevel=2,
        )
        super()._step_one_by_one()
        self._fell_back = True

    def _check_lanes(self) -> bool:
        """Compare the bits of whole prompts alone with their bits while other lanes evaluate others.

        In old builds of llama.cpp, contexts of one process shared a counter, and could change one another's
        bits. Short prompts and prompts of usual length take turns.
        """
        longer = max(1, min(LONG, self.context_tokens - WHOLE_PROMPTS * STRIDE))
        short, usual = (
            self._random_prompts("whole", range(first, first + WHOLE_PROMPTS * STRIDE, STRIDE))
            for first in (1, longer)
        )
        asked = Unchecked(self)
        alone = np.concatenate([asked.next_token_logprobs([prompt]) for prompt in usual])
        together = asked.next_token_logprobs(usual * TURNS)
        same = together.tobytes() == np.tile(alone, (TURNS, 1)).tobytes()
        return same and conformance.check_batch_invariance(asked, short).passed

    def _passes(self, name: str, check: Callable[[], bool]) -> bool:
        """Return the cached verdict of a check, or run the check and cache the verdict."""
        facts = dict(self._facts) | {
            "checked": name,
            "lanes": self._lanes,
            "context_tokens": self.context_tokens,
            "kept_prompts": self.kept_prompts,
            "decode_batch": self._decode_batch,
            "most_streams": self._model.most_streams,
            "threads": self._model.threads,
            "weights": self.weights,
        }
        return machine.verdict_on(facts, bool, check)


def build_facts(path: Path) -> machine.Facts:
    """Return what a verdict depends on beside the settings: file, build of llama.cpp, processor."""
    library = load_library()
    return {
        "check": VERSION,
        "package": __version__,
        "model": machine.digest_of(*shards_of(path)),
        "llama_cpp": library.name,
        "build": machine.digest_of(*library.files),
        "system": library.llama_print_system_info().decode(),
        "processor": machine.processor(),
        "environment": machine.steering_variables(),
    }
