"""Checks of text and tokens, which evaluate no prompt."""

from __future__ import annotations

from collections.abc import Iterable

from dpfewshot.backends.conformance.findings import Finding
from dpfewshot.backends.protocol import LogprobBackend

CONTROL_TEXTS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|eot_id|>",
    "<|user|>",
    "<|assistant|>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
)
"""Control tokens of common models, without those that also occur in texts, such as `<s>` in HTML."""


def check_vocabulary(backend: LogprobBackend) -> Finding:
    """Check that end tokens are in the vocabulary, and that spelling one in a text does not produce it."""
    end_tokens = sorted(backend.end_token_ids)
    strange = [token for token in end_tokens if not 0 <= token < backend.vocabulary_size]
    parsed = [
        token
        for token in end_tokens
        if token not in strange and token in backend.tokenize(f"a{backend.detokenize([token])}b")
    ]
    return Finding(
        check="vocabulary",
        passed=not strange and not parsed,
        detail=f"end tokens outside the vocabulary: {strange}; parsed out of plain text: {parsed}",
    )


def check_text(backend: LogprobBackend, texts: Iterable[str]) -> Finding:
    """Check that `detokenize` inverts `tokenize`, except for a leading space that some models add."""
    changed = 0
    for text in texts:
        back = backend.detokenize(backend.tokenize(text))
        changed += back not in {text, f" {text}"}
    return Finding("text", changed == 0, f"{changed} texts do not survive tokenising and detokenising")


def check_special_tokens(backend: LogprobBackend) -> Finding:
    """Check that the text of a control token is not parsed as one: a record could otherwise open a turn."""
    parsed = [
        text
        for text in CONTROL_TEXTS
        if any(backend.detokenize([token]).strip() == text for token in backend.tokenize(f"a{text}b"))
    ]
    return Finding("special tokens", not parsed, f"parsed out of plain text: {', '.join(parsed) or 'none'}")
