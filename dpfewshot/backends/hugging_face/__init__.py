"""Causal models of transformers, in this process."""

from dpfewshot.backends.hugging_face.backend import HuggingFace

__all__ = ["HuggingFace"]
