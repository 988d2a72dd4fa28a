"""transformers' causal models in this process, on a GPU or the CPU."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.conformance import check_block_agreement
from dpfewshot.backends.machine import digest_of, short_spin
from dpfewshot.backends.protocol import Tokens
from dpfewshot.backends.streams.backend import Columns, StreamBackend, check_settings
from dpfewshot.backends.text import END_NAMES, conversation, readable
from dpfewshot.errors import BackendError, MissingExtra, needs_extra

ATTENTIONS = ("eager", "sdpa")
"""transformers' implementations of attention that accept a mask for each row."""

DTYPES = ("float32", "bfloat16", "float16")

Tensor = Any
"""A `torch.Tensor`: torch is imported when a model is loaded."""

Write = Callable[[Tensor, Tensor], Tensor]
"""Writes a layer's new keys (or values) into its cells and returns the cells to attend to."""


class HuggingFaceModel:
    """A `StreamModel` in the memory of its device; the arguments are as of `HuggingFace`.

    Attributes:
        torch: the `torch` module.
        network: the `transformers` model.
        device, dtype: PyTorch's own.
        layers: heads and width of the keys, and of the values, that each layer caches for a token.
        vocabulary_size: V: the token ids that the tokenizer knows and the model scores. Rows that only pad
            the model's matrices are dropped before probabilities are normalised.
    """

    most_streams: int = sys.maxsize

    def __init__(
        self, model: str | os.PathLike[str], device: str | None, dtype: str | None, attention: str
    ) -> None:
        self.name = os.fspath(model)
        with needs_extra("HuggingFace", "huggingface"):
            with short_spin():
                import torch
            import transformers
        self.torch: Any = torch
        self.device = _device(torch, device)
        self.dtype = _dtype(torch, dtype, self.device)
        if attention not in ATTENTIONS:
            raise BackendError(f"unknown attention {attention!r}; choose {', '.join(ATTENTIONS)}")
        source = _source(self.name)
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
            self.network = transformers.AutoModelForCausalLM.from_pretrained(
                **source, dtype=self.dtype, attn_implementation=attention
            )
            self.network.eval().requires_grad_(False).to(self.device)
        except ImportError as error:
            raise MissingExtra("HuggingFace", "huggingface") from error
        except Exception as error:
            raise BackendError(
                f"transformers cannot load the model {self.name!r}: name a causal language model by folder, "
                f"GGUF file or hub name; transformers says: {str(error).partition(chr(10))[0]}"
            ) from error
        self._encoder = _plain_encoder(self._tokenizer, self.name)
        tokens = self._tokenizer.get_vocab()
        rows = self.network.get_output_embeddings().weight.shape[0]
        self.vocabulary_size: int = min(max(tokens.values()) + 1, rows)
        first = next(iter(self._tokenizer("a")["input_ids"]), None)
        self.bos: int | None = first if first == self._tokenizer.bos_token_id else None
        self.end_token_ids = self._end_tokens(tokens)
        self.longest = _longest(self.network.config.get_text_config())
        self.layers = self._try_out()

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`: nothing is added, and special tokens are parsed or stay text."""
        if special:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self._encoder.encode(readable(text), add_special_tokens=False).ids)

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`: special tokens are spelled out, broken UTF-8 is replaced."""
        plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(list(tokens), **plain))

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation in the tokenizer's chat template."""
        tokenizer, template = self._tokenizer, None
        with suppress(ValueError):  # it has none, or several and no default
            template = tokenizer.get_chat_template()
        return conversation(template, contents, bos=tokenizer.bos_token or "", eos=tokenizer.eos_token or "")

    def open_streams(self, streams: int, tokens: int, lanes: int) -> HuggingFaceStreams:
        """Return empty streams of this many tokens. There is one lane: PyTorch divides the work itself."""
        del lanes
        return HuggingFaceStreams(self, streams=streams, cells=tokens)

    def log_softmax(self, logits: Tensor, columns: Columns) -> NDArray[np.float32]:
        """Return the natural-log probabilities of `columns`; all NaN if a logit is NaN or +inf.

        They are computed in float32 on the device, so that only these columns leave it; float64 would not
        help, since the logits themselves are rounded to float32. The row is copied first: a sum may be split
        according to the address where a row begins.
        """
        with self.evaluating():
            row = logits[: self.vocabulary_size].to(self.torch.float32, copy=True)
            logprobs = self.torch.log_softmax(row, dim=0)
            if not isinstance(columns, slice):
                logprobs = logprobs[self.torch.as_tensor(columns, device=self.device)]
            answer: NDArray[np.float32] = logprobs.cpu().numpy()
        return answer

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute without gradients and without TF32, and withhold what PyTorch says."""
        before = self.torch.get_float32_matmul_precision()
        self.torch.set_float32_matmul_precision("highest")  # TF32 keeps ten bits of each factor
        try:
            with self.torch.inference_mode():
                yield
        except Exception:  # noqa: BLE001 - its message may reveal a prompt's length
            raise BackendError(
                f"PyTorch failed on {self.device}, often for lack of memory: the caches are lost, try again",
                retryable=True,
            ) from None
        finally:
            self.torch.set_float32_matmul_precision(before)

    def model_identity(self) -> str | None:
        """Return "sha256:..." of the files of weights, or "commit:..." of the hub; None without both."""
        path = Path(self.name)
        files = [path] if path.is_file() else sorted(path.glob("*.safetensors")) or sorted(path.glob("*.bin"))
        if files:
            return f"sha256:{digest_of(*files)}"
        commit = getattr(self.network.config, "_commit_hash", None)
        return f"commit:{commit}" if commit else None

    def tokenizer_identity(self) -> str:
        """Return "sha256:..." of the fast tokenizer's definition, as `tokenizer.json` holds it."""
        return f"sha256:{hashlib.sha256(self._tokenizer.backend_tokenizer.to_str().encode()).hexdigest()}"

    def close(self) -> None:
        """Free the memory."""
        self.network = None

    def _end_tokens(self, tokens: dict[str, int]) -> frozenset[int]:
        named = self.network.generation_config.eos_token_id
        ends = {self._tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
        ends |= {tokens[text] for text in END_NAMES if text in tokens}
        return frozenset(token for token in ends if token is not None and 0 <= token < self.vocabulary_size)

    def _try_out(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Return the shapes that each layer caches, found by evaluating two public tokens."""
        from transformers import DynamicCache

        kept, failure = DynamicCache(), None
        try:
            with self.torch.inference_mode():
                ids = self.torch.zeros((1, 2), dtype=self.torch.int64, device=self.device)
                self.network(input_ids=ids, past_key_values=kept, use_cache=True, logits_to_keep=1)
            parts = [(layer.keys.shape, layer.values.shape) for layer in kept.layers]
        except Exception as error:  # noqa: BLE001 - raised below
            parts, failure = [], error
        if not parts or any(len(shape) != 4 or shape[2] != 2 for pair in parts for shape in pair):  # noqa: PLR2004
            raise BackendError(
                f"model {self.name!r} is not a decoder-only transformer with a cache of keys and values: "
                "choose one that is"
            ) from failure
        return [((keys[1], keys[3]), (values[1], values[3])) for keys, values in parts]


def _device(torch: Any, name: str | None) -> Any:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BackendError(f"device={name!r}: PyTorch finds no such device") from error
    return device


def _dtype(torch: Any, name: str | None, device: Any) -> Any:
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise BackendError(f"unknown dtype {name!r}; choose {', '.join(DTYPES)}")
    return getattr(torch, name)


def _source(name: str) -> dict[str, str]:
    """Return the arguments that name the model to transformers."""
    path = Path(name)
    if path.is_file():
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if not path.exists() and (path.suffix == ".gguf" or path.is_absolute() or name.startswith(".")):
        raise BackendError(f"model {name!r} does not exist: check the path")
    return {"pretrained_model_name_or_path": name}


def _plain_encoder(tokenizer: Any, name: str) -> Any:
    """Return the tokenizer without its added tokens, so that it never parses one out of a text.

    transformers' `split_special_tokens` would still parse added tokens that are not marked special.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise BackendError(f"model {name!r} has no fast tokenizer: convert it, or use its GGUF file")
    import tokenizers

    plan = json.loads(tokenizer.backend_tokenizer.to_str())
    added = plan["added_tokens"]
    # Some tokenizers add runs of white space: harmless, and the model was trained with them.
    plan["added_tokens"] = [token for token in added if not token["content"].strip("▁").strip()]
    encoder = tokenizers.Tokenizer.from_str(json.dumps({**plan, "post_processor": None}))
    for token in added:
        text = token["content"]
        if token["special"] and token["id"] in encoder.encode(text).ids:
            raise BackendError(
                f"the tokenizer of {name!r} parses {text!r} out of plain text: use another model"
            )
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _longest(config: Any) -> int | None:
    """Return the smaller of the model's context and its attention window, within which attention is full."""
    names = ("max_position_embeddings", "sliding_window", "attention_chunk_size")
    return min((size for name in names if (size := getattr(config, name, None))), default=None)


# ---- streams ---------------------------------------------------------------------------------------------


class HuggingFaceStreams:
    """The keys and values of many sequences, each in a stream of its own.

    A layer keeps its keys in one tensor of shape (streams, heads, cells, width) and its values in another.
    Position p of a sequence is cell p of its stream, so there is no left padding and no position depends on
    a neighbour.

    - A cell is overwritten before it is attended to: there is nothing to drop.
    - `extend` evaluates one sequence: the shapes depend on that sequence alone.
    - `step` evaluates one token in each of several streams. Each attends to all cells of its stream, with
      later ones masked: the shapes are the same whatever the streams hold.
    """

    def __init__(self, model: HuggingFaceModel, *, streams: int, cells: int) -> None:
        self.cells = cells
        self.failed = False
        self._model = model
        self._torch = torch = model.torch
        try:
            self._layers: list[tuple[Tensor, Tensor]] = [
                tuple(
                    torch.zeros((streams, heads, cells, width), dtype=model.dtype, device=model.device)
                    for heads, width in layer
                )
                for layer in model.layers
            ]
            self._columns = torch.arange(cells, device=model.device)
        except RuntimeError:
            raise BackendError(
                f"{streams} streams of {cells} tokens do not fit the memory of {model.device}: "
                "lower kept_prompts or context_tokens"
            ) from None

    def copy(self, source: int, target: int) -> None:
        """Replace all cells of `target` by a copy of `source`."""
        for layer in self._layers:
            for cells in layer:
                cells[target] = cells[source]

    def extend(self, stream: int, start: int, tokens: Tokens) -> Tensor:
        """Evaluate `tokens` at positions `start`, `start` + 1, ... of one stream; see `Streams.extend`."""
        end = start + len(tokens)

        def write(cells: Tensor, new: Tensor) -> Tensor:
            cells[stream, :, start:end] = new[0]
            return cells[stream : stream + 1, :, :end]

        return self._evaluate([list(tokens)], [list(range(start, end))], None, (start, end), write)[0]

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int], active: int) -> list[Tensor]:
        """Evaluate one token in each of the streams `first`, `first` + 1, ...; see `Streams.step`."""
        torch, model = self._torch, self._model
        past = first + len(tokens)
        rows = torch.arange(first, past, device=model.device)
        where = torch.tensor(positions, device=model.device)

        def write(cells: Tensor, new: Tensor) -> Tensor:
            cells[rows, :, where] = new[:, :, 0]
            return cells[first:past]

        later = self._columns > where[:, None]
        mask = torch.zeros(later.shape, dtype=model.dtype, device=model.device)
        mask.masked_fill_(later, torch.finfo(model.dtype).min)
        logits = self._evaluate(
            [[token] for token in tokens],
            [[position] for position in positions],
            mask[:, None, None],
            (self.cells - 1, self.cells),
            write,
        )
        return list(logits[:active])

    def close(self) -> None:
        """Free the memory."""
        self._layers = []
        self.failed = True

    def _evaluate(
        self,
        tokens: list[list[int]],
        positions: list[list[int]],
        mask: Tensor | None,
        span: tuple[int, int],
        write: Write,
    ) -> Tensor:
        """Return the logits after the last token of each row, shape (rows, V).

        Args:
            mask: added to the attention scores; None for the model's own causal mask.
            span: the number of cells attended to before these tokens, and including them.
            write: stores the new keys and values.
        """
        model, tensor = self._model, self._torch.tensor
        try:
            with model.evaluating():
                logits: Tensor = model.network(
                    input_ids=tensor(tokens, device=model.device),
                    position_ids=tensor(positions, device=model.device),
                    attention_mask=mask,
                    past_key_values=_stream_cache()(self._layers, span, write),
                    use_cache=True,
                    logits_to_keep=1,
                ).logits[:, -1]
        except BackendError:
            self.failed = True
            raise
        return logits


@functools.cache
def _stream_cache() -> type:
    """Return the class of cache that a model writes to. transformers is imported when a model is loaded."""
    from transformers import DynamicCache

    class StreamCache(DynamicCache):  # type: ignore[misc] # transformers is not read by the type checker
        """Writes each layer's new keys and values to their streams."""

        def __init__(self, cells: list[tuple[Tensor, Tensor]], span: tuple[int, int], write: Write) -> None:
            super().__init__()
            self._cells = cells
            self._span = span
            self._write = write

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            keys, values = self._cells[layer_idx]
            return self._write(keys, key_states), self._write(values, value_states)

        def get_seq_length(self, *_: Any, **__: Any) -> int:
            return self._span[0]

        def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
            return self._span[1], 0

    return StreamCache


# ---- the backend ---------------------------------------------------------------------------------------


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
        context_tokens, kept_prompts, decode_batch: as of `LlamaCpp`.

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
        kind = str(loaded.dtype).partition(".")[2]
        self.model_identity = loaded.model_identity()
        self.tokenizer_identity = loaded.tokenizer_identity()
        self._description = f"{loaded.name} on {loaded.device} in {kind}, {attention} attention"
        super().__init__(
            loaded, context_tokens=context_tokens, kept_prompts=kept_prompts, decode_batch=decode_batch
        )

    def describe(self) -> str:
        """Return the model, its device, and how prompts take their steps."""
        steps = "one by one" if self._decode_batch == 1 else f"in steps of {self._decode_batch}"
        verdict = "batch invariant" if self.batch_invariant else "NOT batch invariant"
        return f"{self._description}, prompts {steps}: {verdict}"

    def _settle(self) -> None:
        """Choose how prompts take their steps, and allocate the memory."""
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
