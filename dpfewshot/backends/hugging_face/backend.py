"""transformers' causal models in this process, on a GPU or the CPU."""

from __future__ import annotations

import os

from dpfewshot.backends.conformance import check_block_agreement
from dpfewshot.backends.hugging_face.model import HuggingFaceModel
from dpfewshot.backends.streams.backend import StreamBackend, check_settings
from dpfewshot.errors import BackendError


class HuggingFace(StreamBackend[HuggingFaceModel]):
    """A causal model of transformers, evaluated so that no prompt's answer depends on another prompt.

    A prompt is evaluated in a call of its own, without padding, after the cached keys and values of the
    public prefix. Further tokens of a block are evaluated for `decode_batch` prompts at a time, padded with
    public dummies. Each prompt attends to all cells of its own stream, with later ones masked, so the shape
    of the computation is the same whatever the neighbours.

    Whether kernels treat every row of one shape alike depends on the device and the dtype. The constructor
    therefore runs conformance checks on the loaded model, with public prompts. If a prompt's bits change with
    its neighbours, prompts take their steps one by one. The checks also allocate the memory of the longest
    prompt before there is a private one.

    If the tokenizer puts a beginning-of-sequence token in front of a text, every prompt gets one.

    Args:
        model: a folder with a model and its tokenizer, a name on the hub, or a GGUF file, which is
            unpacked to `dtype`. Code that comes with a model is never run.
        device: PyTorch's name, such as `"cuda:1"`; None for the GPU if there is one, else the CPU.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`; None for bfloat16 on a GPU, else float32.
        attention: `"eager"`, or `"sdpa"` for PyTorch's own kernels.
        context_tokens: the longest prompt, including the tokens that a block adds to it. A longer prompt
            gives a row of NaN for every token of its block.
        kept_prompts: how many private prompts of a block keep their keys and values from token to token,
            rounded up to whole groups of `decode_batch` - 1. Further prompts are evaluated afresh for every
            token: the same answers in more time. Draws vary in size: take a fifth more than their mean.
        decode_batch: prompts that take a step together, one of them a dummy: 1, or a multiple of 8.

    Attributes:
        model_identity: "sha256:" and the SHA-256 of the file of weights (of several, that of theirs, by
            name), or "commit:" and the commit on the hub; None if neither is known.
        tokenizer_identity: "sha256:" and the SHA-256 of the tokenizer's definition.
        batch_invariant: whether the conformance checks passed for the way prompts are evaluated here.

    The constructor allocates, beside the model, `kept_prompts` + 34 streams of `context_tokens` times the
    model's bytes per token. SmolLM2-135M needs 46 kB per token in float32: 2.6 GB by default.

    Raises:
        MissingExtra: PyTorch or transformers is not installed.
        BackendError: the model does not exist or cannot be evaluated here, memory is short, or a setting is
            out of its range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        device: str | None = None,
        dtype: str | None = None,
        attention: str = "eager",
        *,
        context_tokens: int = 512,
        kept_prompts: int = 75,
        decode_batch: int = 16,
    ) -> None:
        check_settings(context_tokens, kept_prompts, decode_batch)
        loaded = HuggingFaceModel(model, device, dtype, attention)
        super().__init__(
            loaded, context_tokens=context_tokens, kept_prompts=kept_prompts, decode_batch=decode_batch
        )
        kind = str(loaded.dtype).partition(".")[2]
        self.model_identity = loaded.model_identity()
        self.tokenizer_identity = loaded.tokenizer_identity()
        self._description = f"{loaded.name} on {loaded.device} in {kind}, {attention} attention"
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    def describe(self) -> str:
        """Return the model, its device, and how prompts take their steps."""
        steps = "one by one" if self._decode_batch == 1 else f"in steps of {self._decode_batch}"
        verdict = "batch invariant" if self.batch_invariant else "NOT batch invariant"
        return f"{self._description}, prompts {steps}: {verdict}"

    def _settle(self) -> None:
        """Choose how prompts take their steps, and allocate the memory.

        Raises:
            BackendError: blocks answer differently from whole prompts.
        """
        self._check_on_device()
        prefix, suffixes, released = self._prompts_of_steps()
        agreement = check_block_agreement(self, prefix, suffixes[:2], released[:1])
        if not agreement.passed:
            raise BackendError(
                f"the model ignores the positions or masks it is given ({agreement.detail}): "
                "use another model, or another attention"
            )
        bos = 0 if self._model.bos is None else 1
        self.next_token_logprobs([[0] * (self.context_tokens - bos)])  # allocates the longest prompt's memory
