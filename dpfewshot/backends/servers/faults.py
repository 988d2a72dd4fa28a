"""Internal exceptions of requests. Each becomes a row of NaN or a `BackendError`.

    Fault
    ├── Refused      the server rejects this request
    ├── Denied       it rejects all such requests: another key, a redirect
    ├── Absent       it has no such page or model
    ├── Changed      the answer names a different model than before
    └── Unanswered   retries or time are used up
        └── Overloaded   and the last status reported overload
    Malformed        an answer of an undocumented form; retried

None quotes a server's answer to a private request: servers quote prompts in their errors.
"""

from __future__ import annotations

from dpfewshot.errors import BackendError


class Fault(Exception):
    """A request without an answer.

    Attributes:
        cause: a status or a kind of failure, in words that reveal nothing of the request.
    """

    def __init__(self, cause: str = "") -> None:
        super().__init__(cause)
        self.cause = cause


class Refused(Fault):
    """The server rejects this request (400, 413, 422); a retry would fail too.

    Attributes:
        message: the server's text if the request was public; else empty.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("a refusal")
        self.message = message


class Denied(Fault):
    """A lasting status that does not depend on this request (401, 403, 3xx)."""


class Absent(Fault):
    """The server has no such page or model (404, 405, 501)."""


class Changed(Fault):
    """This prompt's answer names a different model than earlier answers."""


class Unanswered(Fault):
    """Retries or time are used up."""


class Overloaded(Unanswered):
    """Retries or time are used up, and the last status (429, 503) reported overload."""


class Malformed(Exception):
    """An answer of an undocumented form."""


def error_of_load(server: str) -> BackendError:
    """Return the error for 429 or 503 when no other request was in flight."""
    return BackendError(
        f"{server} is overloaded or enforces a quota: reserve it for this backend", retryable=True
    )


def error_of(fault: Fault, server: str) -> BackendError:
    """Return the error for a fault of a public request."""
    if isinstance(fault, Unanswered):
        return BackendError(f"{server} does not answer: {fault.cause}", retryable=True)
    if isinstance(fault, Changed):
        return BackendError(f"{server} serves a different model than before: connect again")
    if isinstance(fault, Absent):
        return BackendError(f"{server} has no such page, or does not know the model")
    if isinstance(fault, Refused):
        return BackendError(f"{server} refuses a public request")
    return BackendError(f"{server} answered {fault.cause}")
