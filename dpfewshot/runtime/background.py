"""Work that nobody has to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Start work in a thread of its own, in the caller's context. The process may end before it does."""
    found = Future[Result]()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            found.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    return found
