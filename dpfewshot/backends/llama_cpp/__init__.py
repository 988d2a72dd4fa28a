"""GGUF models through llama.cpp, in this process."""

from dpfewshot.backends.llama_cpp.backend import LlamaCpp

__all__ = ["LlamaCpp"]
