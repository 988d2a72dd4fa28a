"""The check that closes a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpfewshot.backends.conformance.findings import Finding
from dpfewshot.backends.protocol import LogprobBackend, Tokens
from dpfewshot.errors import BackendError


def check_closing(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a closed backend refuses prompts with a `BackendError`, and can be closed twice.

    The backend is unusable afterwards. A backend without `close` passes.
    """
    close: Callable[[], None] | None = getattr(backend, "close", None)
    if close is None:
        return Finding("closing", passed=True, detail="nothing to close")
    close()
    close()
    try:
        backend.next_token_logprobs(prompts)
    except BackendError:
        return Finding("closing", passed=True, detail="a closed backend refuses prompts")
    return Finding("closing", passed=False, detail="a closed backend still answers")
