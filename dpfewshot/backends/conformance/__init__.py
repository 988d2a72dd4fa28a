"""The conformance suite: checks of a backend on the loaded model.

Each check asks the backend about public prompts and returns a `Finding`. `examine` runs all checks and yields
findings as they come; `require` raises for those that failed:

    require(examine(backend))

`check_backend` takes custom prompts: use twenty or more of mixed lengths, since a small batch may hide what a
large one shows. A finding reports counts and differences, never text. From a shell, run
`dpfewshot doctor --backend NAME` or `pytest --dpfewshot-backend NAME`.
"""

from __future__ import annotations

from dpfewshot.backends.conformance.answers import (
    NORMALISATION,
    check_empty_prompt,
    check_end_tokens,
    check_long_prompt,
    check_normalisation,
    check_shapes,
    check_support,
)
from dpfewshot.backends.conformance.blocks import check_block_agreement, check_block_invariance
from dpfewshot.backends.conformance.closing import check_closing
from dpfewshot.backends.conformance.findings import Finding, require
from dpfewshot.backends.conformance.invariance import (
    SMALL,
    check_batch_invariance,
    check_concurrency,
    check_prefix_reuse,
)
from dpfewshot.backends.conformance.load import check_load
from dpfewshot.backends.conformance.samples import (
    LONG_TOKENS,
    SAMPLE_PREFIX,
    SAMPLE_TEXT,
    Samples,
    sample_prompts,
)
from dpfewshot.backends.conformance.suite import CHECKS, CLOSING, check_backend, examine, run_check
from dpfewshot.backends.conformance.vocabulary import (
    check_special_tokens,
    check_text,
    check_vocabulary,
)

__all__ = [
    "CHECKS",
    "CLOSING",
    "LONG_TOKENS",
    "NORMALISATION",
    "SAMPLE_PREFIX",
    "SAMPLE_TEXT",
    "SMALL",
    "Finding",
    "Samples",
    "check_backend",
    "check_batch_invariance",
    "check_block_agreement",
    "check_block_invariance",
    "check_closing",
    "check_concurrency",
    "check_empty_prompt",
    "check_end_tokens",
    "check_load",
    "check_long_prompt",
    "check_normalisation",
    "check_prefix_reuse",
    "check_shapes",
    "check_special_tokens",
    "check_support",
    "check_text",
    "check_vocabulary",
    "examine",
    "require",
    "run_check",
    "sample_prompts",
]
