"""Checks at connection: a server's values are the model's own, whatever the neighbours and the replica."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfewshot.backends.conformance import LONG_TOKENS, NORMALISATION, SAMPLE_PREFIX, mixed_texts
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.dialect import gather, spread
from dpfewshot.backends.servers.replicas import Replicas
from dpfewshot.backends.servers.server import Server
from dpfewshot.errors import BackendError

MOVED = 0.05
"""The most that sampling settings may change a probability."""

STRETCHED = 0.3
"""The most that sampling settings may change differences of log-probabilities, as a share of them.

A temperature of 0.5 doubles the differences."""

LEAST, MOST = 8, 128
"""Bounds on the number of crowd prompts, less one: enough to change kernels, few enough to wait for.

vLLM's batch-invariant mode has known faults from 44 to 65 sequences on."""

EVERY = 8
"""One prompt in this many is long."""

ENDING = 16
"""The last tokens of a long prompt, which are its own."""

COMPARED = 4
"""How many public prompts replicas are compared on, over the whole vocabulary."""

APART = 0.2
"""The largest total variation between replicas: other kernels stay below, another model does not."""


async def verify(replicas: Replicas) -> list[str]:
    """Check the values of every replica, and return the hosts whose answers depend on neighbours.

    Log-probabilities that are not the model's own, or differ from the first replica's, are refused.
    """
    prompts = await _prompts(replicas)
    probes = (replicas.named(server, _probe(server, prompts)) for server in replicas.servers)
    invariant = await gather(probes)
    await _check_alike(replicas, prompts[:COMPARED])
    for server, exact in zip(replicas.servers, invariant, strict=True):
        server.exact = exact
    return [server.client.host for server in replicas.servers if not server.exact]


async def _probe(server: Server, prompts: Sequence[Tokens]) -> bool:
    """Ask public prompts alone and as a crowd; return whether they have the same bits alone and among others.

    Only a crowd shows the fault: a vLLM gave three prompts the same bits alone and together, but not 10 of 12
    prompts (docs/decisions/servers.md). Sets whether the server picks token ids correctly.
    """
    dialect = server.dialect
    [whole] = await server.rows(prompts[:1], None)
    _check_total(whole)
    _check_untouched(whole, *await server.answer(prompts[:1], None, dialect.distorted))
    support = spread(dialect.vocabulary_size)
    if dialect.picks:
        try:
            picked = (await server.understood(server.rows(prompts[:1], support))).tobytes()
        except BackendError:
            picked = b""  # it refuses the choice
        dialect.picks = picked == whole[support].tobytes()
    asked = support if dialect.picks else None
    [first] = await server.rows(prompts[:1], asked) if dialect.picks else [whole]
    alone = [first, *[(await server.rows([prompt], asked))[0] for prompt in prompts[1:]]]
    _check_answered(prompts, alone, dialect.context_tokens)
    order = [*reversed(range(len(prompts))), 0]
    together = await server.rows([prompts[place] for place in order], asked)
    return all(row.tobytes() == alone[place].tobytes() for row, place in zip(together, order, strict=True))


async def _prompts(replicas: Replicas) -> list[list[int]]:
    """Return public prompts of mixed lengths that fill all requests of the replica that takes the most.

    One in eight is long. Long prompts share all but their ends. A server that caches prefixes reuses one for
    another even where it reuses none across requests: vLLM's `cache_salt` names a request, and its caches
    hold blocks of 16 tokens on a GPU and 128 on a CPU.
    """
    dialect = replicas.first.dialect
    most = max(server.client.gate.limit for server in replicas.servers)
    count = min(max(most * dialect.prompts_per_request, LEAST), MOST) + 1
    texts = [f"{SAMPLE_PREFIX} {text}" for text in mixed_texts()[:count]]
    short = [await replicas.first.tokenize(text) for text in texts]
    size = LONG_TOKENS if dialect.context_tokens is None else min(LONG_TOKENS, dialect.context_tokens - 1)
    beginning = [*short[0]] * size
    chosen = [short[place % len(short)][:size] for place in range(count)]
    return [
        beginning[: max(0, size - ENDING)] + prompt[-min(ENDING, size) :] if place % EVERY == 1 else prompt
        for place, prompt in enumerate(chosen)
    ]


def _check_total(row: Logprobs) -> None:
    """Check that probabilities sum to 1."""
    total = float(np.exp(row.astype(np.float64)).sum())
    if not (total > 0 and abs(np.log(total)) <= NORMALISATION):
        raise BackendError(f"the server's probabilities sum to {total:.4g} over the vocabulary")


def _check_untouched(row: Logprobs, distorted: Logprobs) -> None:
    """Check that sampling settings do not change the log-probabilities."""
    known = np.isfinite(row) & np.isfinite(distorted)
    stretched = np.std(distorted[known] - row[known]) > STRETCHED * np.std(row[known])
    if stretched or not np.abs(np.exp(distorted) - np.exp(row)).max() <= MOVED:
        raise BackendError(
            "the server's log-probabilities are from after sampling (temperature and penalties change them): "
            "configure it to return the model's own, see docs/how-to/servers.md"
        )


def _check_answered(prompts: Sequence[Tokens], rows: Sequence[Logprobs], context: int | None) -> None:
    """Check that every prompt has a row: two rows of NaN are alike, and show nothing.

    A server that does not state its context may refuse the long prompts.
    """
    lengths = [len(prompt) for prompt, row in zip(prompts, rows, strict=True) if np.isnan(row).any()]
    if lengths and context is not None:
        raise BackendError(
            f"the server does not answer a public prompt of {max(lengths)} tokens, though it states a "
            f"context of {context}: look at its log, or start it with a larger context"
        )


async def _check_alike(replicas: Replicas, prompts: Sequence[Tokens]) -> None:
    """Compare every replica with the first on public prompts."""
    if len(replicas.servers) == 1:
        return
    expected = np.exp(await replicas.first.rows(prompts, None))
    for server in replicas.servers[1:]:
        found = np.exp(await server.understood(server.rows(prompts, None)))
        if not (np.abs(found - expected).sum(axis=1) / 2 <= APART).all():
            raise replicas.different(server, "log-probabilities")
