"""Many prompts in one evaluation, for experiments on public data: fast, and not batch-invariant.

Privacy needs one short prompt a call (docs/decisions/backends.md), and two cores then spend most of their time on
reading weights. Here up to 64 prompts share a call. Their rounding depends on each other, so `batch_invariant` is
false, and a Synthesizer with `allow_batch_variance=True` states no guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.hugging_face import HuggingFaceModel, _stream_cache
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens

ROWS = 64
"""Prompts of a call at most."""

PREFIXES = 4
"""Prefixes kept, the last evaluated ones."""

CALL_TOKENS = 2048
"""Tokens of a call at most, padding included."""


class Batched(LogprobBackend):
    """A backend over a causal model of transformers, in bfloat16, on so many threads of PyTorch.

    A processor without instructions for bfloat16 is faster in float32.
    """

    kept_prompts = None

    def __init__(self, model: str, *, threads: int, context_tokens: int) -> None:
        self._model = HuggingFaceModel(model, "cpu", "bfloat16", "sdpa")
        self._model.torch.set_num_threads(threads)
        self.context_tokens: int = context_tokens
        self.vocabulary_size = self._model.vocabulary_size
        self.end_token_ids = self._model.end_token_ids
        self._prefixes: dict[tuple[int, ...], list[tuple[Any, Any]]] = {}

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return self._model.tokenize(text, special=False)

    def detokenize(self, tokens: Tokens) -> str:
        """The text of `tokens`."""
        return self._model.detokenize(tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """See `LogprobBackend`."""
        return self.open_block((), prompts, 1).next_token_logprobs(support)

    def open_block(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> Block:
        """See `LogprobBackend.open_block`. Private prompts' probabilities are normalised over the support alone.

        Mechanisms use no more than that, and the vocabulary's other rows need not be computed.
        """
        start = [*([] if self._model.bos is None else [self._model.bos]), *prefix]
        return Block(self, start, suffixes, tokens, relative=not public)

    def ends(self, token: int) -> bool:
        """Whether a token ends a line or a text."""
        return token in self.end_token_ids or "\n" in self.detokenize([token])

    def kept(self, prefix: tuple[int, ...]) -> list[tuple[Any, Any]]:
        """Keys and values of a prefix; the last few are cached."""
        if prefix not in self._prefixes:
            while len(self._prefixes) >= PREFIXES:
                del self._prefixes[next(iter(self._prefixes))]
            cells = self.cells(1, len(prefix))
            if prefix:
                self.evaluate(cells, [list(prefix)], [0], [(0, 0)], [0])
            self._prefixes[prefix] = cells
        return self._prefixes[prefix]

    def cells(self, rows: int, count: int) -> list[tuple[Any, Any]]:
        """Empty keys and values, shape (rows, heads, count, width) each."""
        torch, dtype = self._model.torch, self._model.dtype
        return [
            tuple(torch.zeros((rows, heads, count, width), dtype=dtype) for heads, width in layer)
            for layer in self._model.layers
        ]

    def evaluate(
        self,
        cells: list[tuple[Any, Any]],
        tokens: list[list[int]],
        starts: list[int],
        ends: list[tuple[int, int]],
        support: Tokens | None = None,
        *,
        relative: bool = False,
    ) -> NDArray[np.float32]:
        """Log-probabilities of the support after the given tokens.

        Args:
            cells: keys and values, a row each.
            tokens: a row each, of any length.
            starts: the position of the first token of each row.
            ends: the tokens after which to answer: (row, index) each.
            support: token ids; None is the whole vocabulary.
            relative: normalise over the support alone.
        """
        torch, model = self._model.torch, self._model
        longest = max(map(len, tokens))
        count = cells[0][0].shape[2]
        rows = torch.arange(len(tokens))[:, None]
        where = torch.tensor(starts)[:, None] + torch.arange(longest)
        where = where.clamp(max=count - 1)
        inputs = torch.tensor([row + [0] * (longest - len(row)) for row in tokens])

        def write(kept: Any, new: Any) -> Any:
            kept[rows, :, where] = new.transpose(1, 2)
            return kept

        distance = where[:, :, None] - torch.arange(count)
        least = torch.finfo(model.dtype).min
        seen = torch.zeros(distance.shape, dtype=model.dtype).masked_fill(distance < 0, least)[:, None]
        window = getattr(model.network.config, "sliding_window", None) or count + 1
        near = seen.masked_fill((distance >= window)[:, None], least)
        with model.evaluating():
            hidden = model.network.model(
                input_ids=inputs,
                position_ids=where,
                attention_mask={"full_attention": seen, "sliding_attention": near},
                past_key_values=_stream_cache()(cells, (count - longest, count), write),
                use_cache=True,
            ).last_hidden_state
            last = hidden[[row for row, _ in ends], [index for _, index in ends]]
            head = model.network.lm_head
            if support is not None and relative:
                logits = torch.nn.functional.linear(last, head.weight[torch.tensor(support)]).float()
                return np.asarray((logits - logits.logsumexp(dim=1, keepdim=True)).numpy())
            logits = head(last)
            total = logits.float().logsumexp(dim=1, keepdim=True)
            chosen = logits if support is None else logits[:, torch.tensor(support)]
            return np.asarray((chosen.float() - total).numpy())


class Block:
    """Prompts that share a prefix. One that begins with the whole of another is evaluated together with it."""

    def __init__(
        self, backend: Batched, prefix: list[int], suffixes: Sequence[Tokens], tokens: int, *, relative: bool
    ) -> None:
        own = [] if all(suffixes) else prefix[-1:]  # no row may be empty
        self._backend = backend
        self._prefix = tuple(prefix[: len(prefix) - len(own)])
        self._suffixes = [[*own, *suffix] for suffix in suffixes]
        self._tokens = tokens
        self._relative = relative
        self._released: list[list[int]] = []
        self._kept: list[tuple[list[int], list[tuple[Any, Any]]]] | None = None
        self._answers = self._unknown(0)

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """See `PromptBlock`."""
        width = self._backend.vocabulary_size if support is None else len(support)
        if self._kept is None:
            self._answers = self._unknown(width)
            self._kept = [self._begin(part, support, self._answers) for part in self._parts()]
            return self._answers.copy()
        answers = self._answers if self._answers.shape[1] == width else self._unknown(width)
        # the answers of rows that have ended are ignored
        self._kept = self._going(lambda row: not self._backend.ends(self._released[-1][row]))
        for part, cells in self._kept:
            if not part:
                continue
            starts = [len(self._prefix) + len(self._suffixes[row]) + len(self._released) - 1 for row in part]
            steps = [[self._released[-1][row]] for row in part]
            ends = [(index, 0) for index in range(len(part))]
            answers[part] = self._backend.evaluate(
                cells, steps, starts, ends, support, relative=self._relative
            )
        self._answers = answers
        return answers.copy()

    def append(self, token: int) -> None:
        """See `PromptBlock`."""
        self.append_each([token] * len(self._suffixes))

    def append_each(self, tokens: Tokens) -> None:
        """See `PromptBlock`."""
        self._released.append(list(tokens))

    def rewind(self) -> None:
        """See `PromptBlock`."""
        if self._released:
            raise NotImplementedError

    def keep(self, places: Sequence[int]) -> None:
        """See `PromptBlock`."""
        rows = {place: row for row, place in enumerate(places)}
        self._suffixes = [self._suffixes[place] for place in places]
        self._released = [[step[place] for place in places] for step in self._released]
        self._answers = self._answers[list(places)]
        if self._kept is not None:
            going = self._going(rows.__contains__)
            self._kept = [([rows[row] for row in part], cells) for part, cells in going]

    def close(self) -> None:
        """See `PromptBlock`."""
        self._kept = []

    def _going(self, goes: Callable[[int], bool]) -> list[tuple[list[int], list[tuple[Any, Any]]]]:
        """The rows that go on, with their cells."""
        kept = []
        for part, cells in self._kept or ():
            going = [index for index, row in enumerate(part) if goes(row)]
            kept.append(
                ([part[index] for index in going], [tuple(one[going] for one in layer) for layer in cells])
            )
        return kept

    def _unknown(self, width: int) -> NDArray[np.float32]:
        return np.full((len(self._suffixes), width), np.nan, dtype=np.float32)

    def _begin(
        self, part: list[list[int]], support: Tokens | None, answers: NDArray[np.float32]
    ) -> tuple[list[int], list[tuple[Any, Any]]]:
        """Evaluates texts and their prefixes; keeps their cells if further tokens follow."""
        texts = [self._suffixes[rows[-1]] for rows in part]
        cells = self._seated(texts)
        starts = [len(self._prefix)] * len(texts)
        ends = [(index, len(self._suffixes[row]) - 1) for index, rows in enumerate(part) for row in rows]
        found = self._backend.evaluate(cells, texts, starts, ends, support, relative=self._relative)
        answers[[row for rows in part for row in rows]] = found
        return [rows[-1] for rows in part], cells if self._tokens > 1 else []

    def _parts(self) -> list[list[list[int]]]:
        """Texts grouped by length, as many as fit a call, each with its prefixes."""
        chains: list[list[int]] = []
        for row, suffix in enumerate(self._suffixes):
            before = self._suffixes[chains[-1][-1]] if chains and self._tokens == 1 else None
            if before is not None and suffix[: len(before)] == before:
                chains[-1].append(row)
            else:
                chains.append([row])
        parts: list[list[list[int]]] = []
        for chain in sorted(chains, key=lambda rows: len(self._suffixes[rows[-1]])):
            longest = len(self._suffixes[chain[-1]])
            if not parts or len(parts[-1]) == ROWS or (len(parts[-1]) + 1) * longest > CALL_TOKENS:
                parts.append([])
            parts[-1].append(chain)
        return parts

    def _seated(self, texts: list[list[int]]) -> list[tuple[Any, Any]]:
        cells = self._backend.cells(len(texts), len(self._prefix) + max(map(len, texts)) + self._tokens)
        for kept, own in zip(self._backend.kept(self._prefix), cells, strict=True):
            for one, other in zip(kept, own, strict=True):
                other[:, :, : one.shape[2]] = one
        return cells
