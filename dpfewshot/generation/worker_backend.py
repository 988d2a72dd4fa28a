"""The backend of a worker: the caller's own in its process, or one that each worker makes for itself."""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dpfewshot.backends.factory import backend_from, made_by, making_for_worker
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.backends.servers.openai_compatible import OpenAICompatible
from dpfewshot.errors import InvalidPlan

BackendFactory = Callable[[], LogprobBackend] | str
"""A function without arguments that makes a backend, or "package.module:factory"."""

_SERVER: Final = (
    "OpenAICompatible must send all requests to its server, so that what one draw gets does not depend on "
    "another's: use a ThreadPoolExecutor without worker_backend=, whose threads share the synthesizer's"
)

_made = threading.local()
"""The last backend that this thread made: its process, its key and itself."""


@dataclass(frozen=True, repr=False)
class WorkerBackend:
    """How a worker gets its backend.

    Attributes:
        own: the caller's, for workers in its process.
        factory: makes one in each worker, which keeps it; None: they use `own`.
        key: of the factory: equal ones make one backend a worker.
        weights: the form of the caller's weights, which a worker's must have: answers depend on it.
        model: the caller's model (`model_identity`), which a worker's must be: certificates name it.
    """

    own: LogprobBackend | None
    factory: BackendFactory | None
    key: str = ""
    weights: str | None = None
    model: str | None = None

    @classmethod
    def of(cls, own: LogprobBackend, factory: BackendFactory | None) -> WorkerBackend:
        """For one run.

        Raises:
            InvalidPlan: workers would make their own clients of a server.
        """
        if factory is not None:
            _check_no_client(own)
        return cls(own, factory, _key(factory), own.weights, own.model_identity)

    def here(self) -> LogprobBackend:
        """The backend of the thread that asks.

        Raises:
            BackendError: the factory fails.
            InvalidPlan: it makes a client of a server, or a model whose weights have another form.
        """
        if self.factory is None:
            assert self.own is not None  # noqa: S101 - `__reduce__` refuses to lose it
            return self.own
        # a forked child must not use its parent's backend
        mine = (os.getpid(), self.key, self.weights, self.model)
        if getattr(_made, "key", None) != mine:
            _made.key = _made.backend = None  # before a second model is loaded, which may fail
            with making_for_worker(self.weights):
                made = _called(self.factory)
            _check_no_client(made)
            _check_weights(made.weights, self.weights)
            _check_model(made.model_identity, self.model)
            _made.backend = made
            _made.key = mine
        backend: LogprobBackend = _made.backend
        return backend

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for another process makes a backend there.

        Raises:
            InvalidPlan: nothing says how, or it would be a client of its own.
        """
        if self.factory is None:
            _check_no_client(self.own)
            raise InvalidPlan(
                "workers in other processes need a backend of their own: pass worker_backend=, a function "
                "without arguments that makes one"
            )
        return WorkerBackend, (None, self.factory, self.key, self.weights, self.model)


def _check_weights(worker: str | None, caller: str | None) -> None:
    if None not in {worker, caller} and worker != caller:
        raise InvalidPlan(
            f"a worker's model has weights={worker!r}, and the synthesizer's weights={caller!r}: "
            "name one form for both"
        )


def _check_model(worker: str | None, caller: str | None) -> None:
    if None not in {worker, caller} and worker != caller:
        raise InvalidPlan(
            f"a worker's model is {worker}, and the synthesizer's {caller}: worker_backend must make the "
            "same model"
        )


def _check_no_client(backend: LogprobBackend | None) -> None:
    """Refuse a backend of which each worker would have one with a count of requests of its own."""
    if isinstance(backend, OpenAICompatible):
        raise InvalidPlan(_SERVER)


def _called(factory: BackendFactory) -> LogprobBackend:
    if isinstance(factory, str):
        return backend_from(factory)
    return made_by(factory, "worker_backend")


def _key(factory: BackendFactory | None) -> str:
    try:
        return hashlib.sha256(pickle.dumps(factory)).hexdigest()
    except Exception:  # noqa: BLE001 - a closure, which only some executors can send
        return uuid.uuid4().hex
