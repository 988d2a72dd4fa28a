"""All checks, ordered so that a fault is found early and is easy to understand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from dpfewshot.backends.conformance.answers import (
    check_empty_prompt,
    check_end_tokens,
    check_long_prompt,
    check_normalisation,
    check_shapes,
    check_support,
)
from dpfewshot.backends.conformance.blocks import check_block_agreement, check_block_invariance
from dpfewshot.backends.conformance.closing import check_closing
from dpfewshot.backends.conformance.findings import Finding
from dpfewshot.backends.conformance.invariance import (
    check_batch_invariance,
    check_concurrency,
    check_prefix_reuse,
)
from dpfewshot.backends.conformance.load import check_load
from dpfewshot.backends.conformance.samples import Samples
from dpfewshot.backends.conformance.vocabulary import (
    check_special_tokens,
    check_text,
    check_vocabulary,
)
from dpfewshot.backends.protocol import LogprobBackend, Tokens

FEW = 5
"""Prompts for checks that need few."""

Check = Callable[[LogprobBackend, Samples], Finding]

CLOSING: Final = "closing"

CHECKS: Final[Mapping[str, Check]] = {
    "vocabulary": lambda backend, _: check_vocabulary(backend),
    "text": lambda backend, given: check_text(backend, given.texts),
    "special tokens": lambda backend, _: check_special_tokens(backend),
    "shapes": lambda backend, given: check_shapes(backend, given.prompts[:3]),
    "support": lambda backend, given: check_support(backend, given.prompts[:3]),
    "normalisation": lambda backend, given: check_normalisation(backend, given.prompts),
    "end tokens": lambda backend, given: check_end_tokens(backend, given.prompts[:3], given.texts),
    "empty prompt": lambda backend, given: check_empty_prompt(backend, given.prompts[:3]),
    "long prompt": lambda backend, given: check_long_prompt(backend, given.prompts[:3]),
    "prefix reuse": lambda backend, given: check_prefix_reuse(backend, given.prompts[:FEW]),
    "concurrency": lambda backend, given: check_concurrency(backend, given.prompts[:FEW]),
    # Hundreds of prompts: without the prefix they are shorter and just as varied.
    "batch invariance": lambda backend, given: check_batch_invariance(backend, given.suffixes),
    "load": lambda backend, given: check_load(backend, given.suffixes),
    "block invariance": lambda backend, given: check_block_invariance(
        backend, given.prefix, given.suffixes, given.released
    ),
    "block agreement": lambda backend, given: check_block_agreement(
        backend, given.prefix, given.suffixes[:FEW], given.released
    ),
    CLOSING: lambda backend, given: check_closing(backend, given.prompts[:1]),
}
"""Every check by name, in order. The last one closes the backend."""


def examine(
    backend: LogprobBackend, samples: Samples | None = None, *, closing: bool = True
) -> Iterator[Finding]:
    """Run the checks, each when its finding is asked for.

    A check fails if the backend raises. The finding then names the exception's type alone, since its message
    may quote a prompt.

    Args:
        backend: the backend.
        samples: public prompts; None for the built-in ones.
        closing: whether to close the backend at the end, and check that it then refuses prompts.

    Yields:
        One finding per check.
    """
    if samples is None:
        try:
            samples = Samples.of(backend)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding
            yield _raised("sample prompts", error)
            return
    for name in CHECKS:
        if closing or name != CLOSING:
            yield run_check(name, backend, samples)


def run_check(name: str, backend: LogprobBackend, samples: Samples) -> Finding:
    """Run one check of `CHECKS`; it fails if the backend raises."""
    try:
        return CHECKS[name](backend, samples)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding
        return _raised(name, error)


def check_backend(
    backend: LogprobBackend, prefix: Tokens, suffixes: Sequence[Tokens], released: Tokens
) -> list[Finding]:
    """Run every check except closing on the prompts `prefix + suffix`, continued by `released`.

    It has no texts to round-trip: pass your own to `check_text`.

    Args:
        backend: the backend.
        prefix: public token ids that all prompts begin with.
        suffixes: the rest of each prompt: at least two, of mixed lengths.
        released: the tokens that continue blocks, at least one.
    """
    return list(examine(backend, Samples(prefix, suffixes, released, texts=()), closing=False))


def _raised(name: str, error: Exception) -> Finding:
    return Finding(name, passed=False, detail=f"the backend raised {type(error).__name__}")
