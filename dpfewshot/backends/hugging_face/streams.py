"""Key-value streams for transformers' causal models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from dpfewshot.backends.hugging_face.model import HuggingFaceModel
from dpfewshot.backends.protocol import Tokens
from dpfewshot.backends.streams.pool import TokenCounts
from dpfewshot.errors import BackendError

Tensor = Any
"""A `torch.Tensor`: torch is imported when a model is loaded."""

Write = Callable[[Tensor, Tensor], Tensor]
"""Writes a layer's new keys (or values) into its cells and returns the cells to attend to."""


class HuggingFaceStreams:
    """The keys and values of many sequences, each in a stream of its own.

    A layer keeps its keys in one tensor of shape (streams, heads, cells, width) and its values in another.
    Position p of a sequence is cell p of its stream, so there is no left padding and no position depends on
    a neighbour.

    - `extend` evaluates one sequence: the shapes depend on that sequence alone.
    - `step` evaluates one token in each of several streams. Each attends to all cells of its stream, with
      later ones masked: the shapes are the same whatever the streams hold.

    Raises:
        BackendError: the device lacks the memory.
    """

    def __init__(self, model: HuggingFaceModel, *, streams: int, cells: int, counts: TokenCounts) -> None:
        self.cells = cells
        self.failed = False
        self._model = model
        self._counts = counts
        self._torch = torch = model.torch
        try:
            self._layers: list[tuple[Tensor, Tensor]] = [
                tuple(
                    torch.zeros(
                        (streams, part.heads, cells, part.width), dtype=model.dtype, device=model.device
                    )
                    for part in layer
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

    def rewind(self, stream: int, length: int) -> None:
        """Do nothing: `extend` and `step` overwrite a cell before they attend to it, and to none after it."""

    def extend(self, stream: int, start: int, tokens: Tokens, *, dummies: bool = False) -> Tensor:
        """Evaluate `tokens` at positions `start`, `start` + 1, ... of one stream; see `Streams.extend`."""
        end = start + len(tokens)

        def write(cells: Tensor, new: Tensor) -> Tensor:
            cells[stream, :, start:end] = new[0]
            return cells[stream : stream + 1, :, :end]

        logits = self._evaluate([list(tokens)], [list(range(start, end))], None, (start, end), write)
        self._counts.add(**{"dummies" if dummies else "tokens": len(tokens)})
        return logits[0]

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
        self._counts.add(tokens=active, dummies=len(tokens) - active)
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
            tokens: a row of token ids for each sequence.
            positions: the position of each token.
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


@cache
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
