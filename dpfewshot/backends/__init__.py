"""Language models that answer with next-token log-probabilities.

`LlamaCpp`, `OpenAICompatible` and `HuggingFace` are imported when they are first named, so that the
package imports without what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpfewshot.backends.factory import backend_from
from dpfewshot.backends.packaged import packaged_model_path
from dpfewshot.backends.protocol import (
    BlockBackend,
    LogprobBackend,
    PromptBlock,
    ReplayedBlock,
    open_block,
)
from dpfewshot.backends.scripted import Scripted

if TYPE_CHECKING:
    from dpfewshot.backends.hugging_face import HuggingFace
    from dpfewshot.backends.llama_cpp import LlamaCpp
    from dpfewshot.backends.servers.openai_compatible import OpenAICompatible

__all__ = [
    "BlockBackend",
    "HuggingFace",
    "LlamaCpp",
    "LogprobBackend",
    "OpenAICompatible",
    "PromptBlock",
    "ReplayedBlock",
    "Scripted",
    "backend_from",
    "open_block",
    "packaged_model_path",
]

_LAZY = {
    "HuggingFace": "dpfewshot.backends.hugging_face",
    "LlamaCpp": "dpfewshot.backends.llama_cpp",
    "OpenAICompatible": "dpfewshot.backends.servers.openai_compatible",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
