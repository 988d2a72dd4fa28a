"""Detection of the kind of server at an address."""

from __future__ import annotations

from typing import Any

from dpfewshot.backends.servers.dialect import Dialect
from dpfewshot.backends.servers.llama_server import LlamaServer
from dpfewshot.backends.servers.openai_completions import OpenAICompletions
from dpfewshot.backends.servers.sglang import SGLang
from dpfewshot.backends.servers.transport import Transport
from dpfewshot.backends.servers.vllm import VLLM
from dpfewshot.errors import BackendError

DIALECTS: dict[str, type[Dialect]] = {
    dialect.name: dialect for dialect in (LlamaServer, VLLM, SGLang, OpenAICompletions)
}
"""Every dialect by name."""

OWNERS: dict[str, type[Dialect]] = {"llamacpp": LlamaServer, "vllm": VLLM, "sglang": SGLang}
"""Dialects by the owner of a model in `/v1/models`."""


def dialect_named(name: str) -> type[Dialect]:
    """Return a dialect by its name.

    Raises:
        BackendError: the name is unknown.
    """
    if name in DIALECTS:
        return DIALECTS[name]
    raise BackendError(f"unknown dialect {name!r}; choose 'auto', {', '.join(map(repr, DIALECTS))}")


async def detect(transport: Transport) -> type[Dialect]:
    """Return a server's dialect, found from `/v1/models` and from a page that only SGLang has.

    Raises:
        Fault: nothing answers at the address, or the server denies the request.
    """
    listed = await transport.get(f"{transport.base}/models")
    for owner in _owners(listed):
        if owner in OWNERS:
            return OWNERS[owner]
    is_sglang = await transport.get(f"{transport.root}/get_model_info") is not None
    return SGLang if is_sglang else OpenAICompletions


def _owners(listed: Any) -> list[str]:
    models = listed.get("data") if isinstance(listed, dict) else None
    return [str(model.get("owned_by")) for model in models or [] if isinstance(model, dict)]
