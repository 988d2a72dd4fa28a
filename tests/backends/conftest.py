"""Fixtures of backends: scripted servers, and the library of llama.cpp that converts weights."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.llama_cpp.library import load_library
from dpfewshot.backends.servers import client
from tests.support import inside
from tests.support.servers import scripted


@pytest.fixture
def quick(monkeypatch):
    """Two attempts, one at once after the other."""
    monkeypatch.setattr(client, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(client, "ATTEMPTS", 2)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dpfewshot" / "verdicts"


@pytest.fixture
def connect():
    """Connects to a script, or to several as replicas; what was opened is closed.

    `hurry` is the timeout in seconds once connected. The running servers are the backend's `servers`.
    """
    with ExitStack() as stack:

        def connected(*scripts, hurry=None, **options):
            servers = [stack.enter_context(scripted(script)) for script in scripts]
            urls = [server.base_url for server in servers]
            backend = OpenAICompatible(urls, "served", **({"timeout": 20.0} | options))
            stack.enter_context(backend)
            backend.servers = servers
            if hurry is not None:
                inside.hurry(backend, hurry)
            return backend

        yield connected


@pytest.fixture
def converting():
    """The library of llama.cpp; skips, aloud, where it is the prebuilt one, which cannot convert weights."""
    library = load_library()
    if not library.converts:
        pytest.skip("the prebuilt llama.cpp converts no weights; `make compiled` runs this")
    return library
