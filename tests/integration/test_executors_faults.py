"""`generate_all(executor=...)` when a run is stopped, when workers die, and when an answer is lost."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.generation.workers import Workers
from tests.support import factory, fleet
from tests.support.scripts import Sentence

PLANNED = 8
OPTIONS: dict[str, Any] = {"prompts_per_token": 20, "labels": ["refund"]}


def synthesizer(**options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(fleet.sure(), **(OPTIONS | options))


def endless(**options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(Sentence([" my"], sure=0.999999), **(OPTIONS | options))


# ---- a run is stopped ------------------------------------------------------------------------------------


class LastOfTwo(ThreadPoolExecutor):
    """Begins the draws of two labels together, and returns the second label's once the run is stopped."""

    def __init__(self) -> None:
        super().__init__(2)
        self.both = threading.Barrier(2, timeout=20)
        self.stopped = threading.Event()

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        def later(task: Any) -> Any:
            self.both.wait()
            drawn = fn(task)
            if task.label == "delivery":
                self.stopped.wait(20)
            return drawn

        return super().submit(later, *arguments)


def test_what_a_worker_released_is_kept_when_the_run_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = tmp_path / "run.jsonl", {"labels": ["refund", "delivery"], "resample_every": PLANNED}
    cancel = Workers.cancel

    class Interrupted(Exception):
        pass

    def interrupt(_: dpf.Demonstration) -> None:
        raise Interrupted

    with LastOfTwo() as pool, synthesizer(**options) as made:

        def cancelled(workers: Workers) -> None:
            cancel(workers)
            pool.stopped.set()

        monkeypatch.setattr(Workers, "cancel", cancelled)
        with pytest.raises(Interrupted):
            made.generate_all(executor=pool, checkpoint=path, on_demonstration=interrupt)
    with synthesizer(**options) as made:
        assert {one.text for one in made.generate_all(checkpoint=path)} == {"my parcel is late"}
