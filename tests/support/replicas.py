"""Backends whose replicas are scripts."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.servers.replicas import replica_of
from tests.support import inside
from tests.support.servers import scripted

SUPPORT = [5, 6, 7]
PROMPTS = [[place, 2, 3 * place] for place in range(12)]
AT = [[prompt for prompt in PROMPTS if replica_of(prompt, 2) == replica] for replica in range(2)]
"""The prompts of each of two replicas."""


@contextmanager
def connected(*scripts, seconds=None, **options):
    """A backend whose replicas are these scripts, and the servers that run them."""
    with ExitStack() as stack:
        servers = [stack.enter_context(scripted(script)) for script in scripts]
        urls = [server.base_url for server in servers]
        backend = stack.enter_context(
            OpenAICompatible(urls, "served", **({"timeout": 20.0, "concurrency": 1} | options))
        )
        if seconds is not None:
            inside.hurry(backend, seconds)
        yield backend, servers
