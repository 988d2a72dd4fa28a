"""The checks of a server when a backend connects: each replica by itself, and all against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dpfewshot.backends.conformance import SAMPLE_PREFIX, SAMPLE_TEXT
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.connection import Connection
from dpfewshot.backends.servers.probe import Findings, crowd, crowd_of, probe
from dpfewshot.backends.servers.replicas import Replicas
from dpfewshot.errors import BackendError

COMPARED = 4
"""How many public prompts replicas are compared on, over the whole vocabulary."""

APART = 0.2
"""The largest total variation between replicas: other kernels stay below, another model does not."""


def verify(replicas: Replicas) -> list[str]:
    """Check the values of every replica, and return the hosts whose answers depend on neighbours.

    Raises:
        BackendError: a replica's log-probabilities are not the model's own, or differ from the first one's.
    """
    prompts = _prompts(replicas)

    def check(connection: Connection) -> Findings:
        def ask(
            prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
        ) -> Logprobs:
            return replicas.run(connection.rows(prompts, support, settings))

        try:
            return probe(ask, prompts, connection.dialect)
        except BackendError as error:
            told = replicas.named(connection, error)
        raise told

    with ThreadPoolExecutor(len(replicas.connections)) as pool:
        findings = list(pool.map(check, replicas.connections))
    _check_alike(replicas, prompts[:COMPARED])
    varying = []
    for connection, found in zip(replicas.connections, findings, strict=True):
        connection.dialect.picks = found.picks
        connection.remember_bits(exact=found.batch_invariant)
        if not found.batch_invariant:
            varying.append(connection.host)
    return varying


def _prompts(replicas: Replicas) -> list[list[int]]:
    """Return public prompts that fill all requests of the replica that takes the most."""
    dialect = replicas.first.dialect
    words = SAMPLE_TEXT.split()
    # Long and short texts alternate, so that requests in flight together differ.
    ends = [len(words) - place if place % 2 else 1 + place for place in range(len(words))]
    texts = [f"{SAMPLE_PREFIX} {' '.join(words[:end])}" for end in ends]
    most = max(connection.concurrency for connection in replicas.connections)
    count = crowd_of(dialect.prompts_per_request, most)
    longest = None if dialect.context_tokens is None else dialect.context_tokens - 1
    return crowd([replicas.tokenize(text) for text in texts[:count]], count, longest)


def _check_alike(replicas: Replicas, prompts: Sequence[Tokens]) -> None:
    """Compare every replica with the first on public prompts."""
    first, *others = replicas.connections
    if others:
        expected = np.exp(replicas.run(first.rows(prompts, None)))
    for connection in others:
        found = np.exp(replicas.run(connection.rows(prompts, None)))
        if not (np.abs(found - expected).sum(axis=1) / 2 <= APART).all():
            raise replicas.different(connection, "log-probabilities")
