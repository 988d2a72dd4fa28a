"""A key-value stream for each prompt, for transformers' causal models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dpfewshot.backends.streams.protocol import Tally
from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from dpfewshot.backends.hugging_face.model import HuggingFaceModel
    from dpfewshot.backends.protocol import Tokens

Tensor = Any
"""A `torch.Tensor`; torch is imported when a model is."""

Write = Callable[[Tensor, Tensor], Tensor]
"""Puts new keys (or values) of a layer into its cells and returns those to attend to."""


class HuggingFaceStreams:
    """The keys and values of many sequences, each in a stream of its own.

    A layer's keys are one tensor of shape (streams, heads, cells, width), its values another. The token
    at position p of a sequence stands in cell p of its stream, so nothing is padded on the left and no
    position depends on a neighbour.

    - `extend` evaluates one sequence: the shapes are those of that sequence alone.
    - `step` evaluates one token in each of several streams, and attends to all of their cells, the
      later ones masked: the shapes are the same for whatever is in them.

    Args:
        model: the model.
        streams: how many.
        cells: tokens that a stream holds.
        tally: where evaluated tokens are counted.

    Attributes:
        cells: as above.
        failed: whether an evaluation failed. Then nothing may be read from the streams any more.

    Raises:
        BackendError: not enough memory.
    """

    def __init__(self, model: HuggingFaceModel, *, streams: int, cells: int, tally: Tally) -> None:
        self.cells = cells
        self.failed = False
        self._model = model
        self._tally = tally
        self._torch = torch = model.torch
        try:
            self._layers: list[tuple[Tensor, Tensor]] = [
                tuple(
                    torch.zeros(
                        (streams, part.heads, cells, part.width), dtype=model.dtype, device=model.device
                    )
                    for part in (layer.keys, layer.values)
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
        """Make `target` a copy of `source`, all cells: nothing of what it held before stays."""
        for layer in self._layers:
            for cells in layer:
                cells[target] = cells[source]

    def rewind(self, stream: int, length: int) -> None:
        """Forget what follows the first `length` tokens of a stream: here there is nothing to do.

        `extend` and `step` write a token's cell before they attend to it, and never attend to later ones.
        """

    def extend(self, stream: int, start: int, tokens: Tokens, *, dummies: bool = False) -> Tensor:
        """Evaluate `tokens` at positions `start`, `start` + 1, ... of one stream, in a call of their own.

        Args:
            stream: which.
            start: how many tokens it holds.
            tokens: at least one.
            dummies: whether they are counted as dummies.

        Returns:
            The logits after the last of them, shape (V,).
        """
        end = start + len(tokens)

        def write(cells: Tensor, new: Tensor) -> Tensor:
            cells[stream, :, start:end] = new[0]
            return cells[stream : stream + 1, :, :end]

        logits = self._evaluate([list(tokens)], [list(range(start, end))], None, (start, end), write)
        if dummies:
            self._tally.dummies += len(tokens)
        else:
            self._tally.tokens += len(tokens)
        return logits[0]

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int], seated: int) -> list[Tensor]:
        """Evaluate one token in each of the streams `first`, `first` + 1, ..., in one call.

        Args:
            first: the first stream.
            tokens: a token for each stream.
            positions: where in its stream each token stands.
            seated: how many of them, from the first, are prompts; the rest are dummies.

        Returns:
            The logits of the first `seated` streams, each of shape (V,).
        """
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
        self._tally.tokens += seated
        self._tally.dummies += len(tokens) - seated
        return list(logits[:seated])

    def close(self) -> None:
        """Give the memory back."""
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
        """The logits after the last token of each row, shape (rows, V).

        Args:
            tokens: a row of token ids for each sequence.
            positions: the position of each.
            mask: what is added to the scores; None for the model's own causal mask.
            span: how many cells were seen before, and with these tokens.
            write: where the keys and values go.
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
    """The cache that a model is given; a class of transformers, which is imported when a model is."""
    from transformers import DynamicCache

    class StreamCache(DynamicCache):  # type: ignore[misc] # transformers is not read by the type checker
        """Sends each layer's new keys and values to their streams."""

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
