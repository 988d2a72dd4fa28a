"""How a request can fail, inside this package: each is turned into a row of NaN or a `BackendError`.

    Fault
    ├── Refused      the server will not take this very request
    ├── Denied       it answers such requests otherwise: another key, a redirect
    ├── Absent       it has no such page or model
    ├── Changed      the answer names another model than before
    └── Unanswered   retries or time are spent
        └── Overloaded   and the last answer spoke of the server's load
    Malformed        an answer of another form; retried

None holds what a server wrote: a server quotes prompts in its errors.
"""

from __future__ import annotations

from dpfewshot.errors import BackendError


class Fault(Exception):
    """A request that has no answer.

    Attributes:
        cause: a status or a kind of failure, in words that hold nothing of the request.
    """

    def __init__(self, cause: str = "") -> None:
        super().__init__(cause)
        self.cause = cause


class Refused(Fault):
    """The server will not take this request (400, 413, 422): asking again says the same.

    Attributes:
        message: what the server wrote, of requests that hold nothing private; else empty.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("a refusal")
        self.message = message


class Denied(Fault):
    """A status that is neither a refusal of this request nor a failure that passes (401, 403, 3xx)."""


class Absent(Fault):
    """There is no such page (404, 405, 501), or no such model."""


class Changed(Fault):
    """The answer says that it is of another model than the one before: of this prompt's answer alone."""


class Unanswered(Fault):
    """Retries or time are spent."""


class Overloaded(Unanswered):
    """Retries or time are spent, and the last status (429, 503) spoke of other requests, not of this one."""


class Malformed(Exception):
    """An answer does not have the documented form."""


def error_of_load(server: str) -> BackendError:
    """What 429 or 503 says of the server, to one request with nothing else under way: no more than that."""
    return BackendError(
        f"{server} has too much to do, or keeps a quota: let nobody else use it", retryable=True
    )


def error_of(fault: Fault, server: str) -> BackendError:
    """What a fault of a public request says of the server."""
    if isinstance(fault, Unanswered):
        return BackendError(f"{server} does not answer: {fault.cause}", retryable=True)
    if isinstance(fault, Changed):
        return BackendError(f"{server} serves another model than before: connect again")
    if isinstance(fault, Absent):
        return BackendError(f"{server} has no such page, or does not know the model")
    if isinstance(fault, Refused):
        return BackendError(f"{server} refuses a public request")
    return BackendError(f"{server} answered {fault.cause}")
