"""A backend that keeps streams is closed while it computes: nothing is freed that a lane still uses."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from dpfewshot.backends.streams import backend as streams
from dpfewshot.errors import BackendError
from tests.support.processes import true_in_child
from tests.support.streams import Toy

PROMPTS = [[number] * 5 for number in range(1, 9)]


def test_a_close_from_within_a_call_frees_at_the_end_of_the_call() -> None:
    """As a signal's handler does, which runs in the thread that evaluates."""
    main = threading.current_thread()

    def during() -> None:
        time.sleep(0.01)
        if threading.current_thread() is main:
            toy.close()
            assert not toy.model.freed

    toy = Toy(during)
    assert not np.isnan(toy.next_token_logprobs(PROMPTS)).any()
    assert toy.model.freed
    assert toy.model.faults == []
    with pytest.raises(BackendError, match="is closed"):
        toy.next_token_logprobs(PROMPTS)


def test_a_lane_left_behind_evaluates_nothing_once_the_backend_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy = Toy(lambda: None)
    left: list[Any] = []

    def escape(pools: Any, batches: Any, work: Any) -> None:
        left.append(lambda: work(pools[1], batches[0]))
        raise KeyboardInterrupt

    monkeypatch.setattr(streams, "side_by_side", escape)
    with pytest.raises(KeyboardInterrupt):
        toy.next_token_logprobs(PROMPTS)
    toy.close()
    left[0]()
    assert toy.model.faults == []


def test_a_forked_child_closes_at_once_while_its_parent_computes() -> None:
    begun, ended = threading.Event(), threading.Event()

    def during() -> None:
        begun.set()
        ended.wait()

    toy = Toy(during)
    thread = threading.Thread(target=toy.next_token_logprobs, args=(PROMPTS[:1],))
    thread.start()
    begun.wait()
    assert true_in_child(lambda: toy.close() is None and not toy.model.freed)
    ended.set()
    thread.join()
    toy.close()
    assert toy.model.freed
