"""Which kind of server answers at an address: it is asked."""

from __future__ import annotations

from typing import Any

from dpfewshot.backends.servers.dialect import Dialect
from dpfewshot.backends.servers.llama_cpp_python import LlamaCppPython
from dpfewshot.backends.servers.llama_server import LlamaServer
from dpfewshot.backends.servers.openai_completions import OpenAICompletions
from dpfewshot.backends.servers.sglang import SGLang
from dpfewshot.backends.servers.transport import Transport
from dpfewshot.backends.servers.vllm import VLLM
from dpfewshot.errors import BackendError

DIALECTS: dict[str, type[Dialect]] = {
    dialect.name: dialect for dialect in (LlamaServer, VLLM, SGLang, LlamaCppPython, OpenAICompletions)
}
"""Every dialect by its name."""

OWNERS: dict[str, type[Dialect]] = {"llamacpp": LlamaServer, "vllm": VLLM, "sglang": SGLang}
"""What `/v1/models` names as the owner of a model."""


def dialect_named(name: str) -> type[Dialect]:
    """A dialect by its name.

    Raises:
        BackendError: there is none of that name.
    """
    if name not in DIALECTS:
        raise BackendError(f"dialect={name!r} is none: take 'auto', {', '.join(map(repr, DIALECTS))}")
    return DIALECTS[name]


async def detect(transport: Transport) -> type[Dialect]:
    """The dialect of a server, by what `/v1/models` says and by the pages that only one kind has.

    Raises:
        Fault: nothing answers there, or a server that wants something else.
    """
    listed = await transport.get(f"{transport.base}/models")
    for owner in _owners(listed):
        if owner in OWNERS:
            return OWNERS[owner]
    if await transport.get(f"{transport.root}/get_model_info") is not None:
        return SGLang
    interface = await transport.get(f"{transport.root}/openapi.json")
    pages = interface.get("paths", {}) if isinstance(interface, dict) else {}
    return LlamaCppPython if "/extras/tokenize" in pages else OpenAICompletions


def _owners(listed: Any) -> list[str]:
    models = listed.get("data") if isinstance(listed, dict) else None
    return [str(model.get("owned_by")) for model in models or [] if isinstance(model, dict)]
