"""A forked child waits for nothing that a thread of its parent held."""

from __future__ import annotations

import os
import signal
import threading

from dpfewshot.runtime.forking import cached_property

SECONDS = 20
started = threading.Event()
finish = threading.Event()


class Slow:
    def __init__(self, answer: int) -> None:
        self._answer = answer
        self.computed = 0

    @cached_property
    def answer(self) -> int:
        self.computed += 1
        if self._answer == 1:
            started.set()
            finish.wait(SECONDS)
        return self._answer


def test_a_child_forked_while_a_thread_computes_does_not_wait_for_it() -> None:
    # before Python 3.12 functools.cached_property fails this: a child held the ledger's row for ever
    thread = threading.Thread(target=lambda: Slow(1).answer)
    thread.start()
    assert started.wait(SECONDS)
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)  # ends a child that waits
        os._exit(Slow(2).answer)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    finally:
        finish.set()
        thread.join()


def test_it_is_computed_once_for_each_object() -> None:
    each = Slow(2)
    assert (each.answer, each.answer, each.computed) == (2, 2, 1)
    assert Slow(3).answer == 3
