"""Language models that answer with next-token log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfewshot.runtime import lazy_names

if TYPE_CHECKING:
    # isort: off
    from dpfewshot.backends.chat_writer import ChatWriter as ChatWriter
    from dpfewshot.backends.factory import backend_from as backend_from
    from dpfewshot.backends.hugging_face import HuggingFace as HuggingFace
    from dpfewshot.backends.llama_cpp.backend import LlamaCpp as LlamaCpp
    from dpfewshot.backends.llama_cpp.files import packaged_model_path as packaged_model_path
    from dpfewshot.backends.protocol import (
        LogprobBackend as LogprobBackend,
        PromptBlock as PromptBlock,
        ReplayedBlock as ReplayedBlock,
    )
    from dpfewshot.backends.scripted import Scripted as Scripted
    from dpfewshot.backends.servers.openai_compatible import OpenAICompatible as OpenAICompatible

# The public names. Each is imported on first use, so one backend's missing libraries leave the others usable.
# tests/unit/test_house.py checks the imports above, which type checkers read, against this table.
_HOMES = {
    "ChatWriter": "dpfewshot.backends.chat_writer",
    "HuggingFace": "dpfewshot.backends.hugging_face",
    "LlamaCpp": "dpfewshot.backends.llama_cpp.backend",
    "LogprobBackend": "dpfewshot.backends.protocol",
    "OpenAICompatible": "dpfewshot.backends.servers.openai_compatible",
    "PromptBlock": "dpfewshot.backends.protocol",
    "ReplayedBlock": "dpfewshot.backends.protocol",
    "Scripted": "dpfewshot.backends.scripted",
    "backend_from": "dpfewshot.backends.factory",
    "packaged_model_path": "dpfewshot.backends.llama_cpp.files",
}
if not TYPE_CHECKING:  # type checkers re-export the imports above, and cannot read this list
    __all__ = [*_HOMES]  # noqa: PLE0604 - the table's keys are strings
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*_HOMES]
