"""Executors, and backends that workers of other processes can make."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dpfewshot as dpf
from tests.support.scripts import Sentence

SECRET = "the patient of room 4711"
ATTEMPTS = 3


def sure() -> Sentence:
    """A sentence of 5 tokens, nearly always."""
    return Sentence(sure=0.999999)


class Killed(Sentence):
    """Kills its process with -9, at one private prompt of all workers."""

    def __init__(self, folder: str, after: int) -> None:
        super().__init__(sure=0.999999)
        self.folder = Path(folder)
        self.left = after

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            if self.left == 0:
                die_once(self.folder)
            self.left -= 1
        return super().next_token_logprobs(prompts, support)


def die_once(folder: Path) -> None:
    """Kill this process, unless another one was."""
    if first_time(folder / "killed"):
        os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, after: int = 2) -> Callable[[], Sentence]:
    return partial(Killed, str(folder), after)


class Failing(Sentence):
    """Fails after a draw, with a message that quotes a record, while a local variable holds it too."""

    def __init__(self) -> None:
        super().__init__(sure=0.999999)
        self.drew = False

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        record = SECRET
        if support is None and self.drew:
            raise RuntimeError(record)
        self.drew = self.drew or support is not None
        return super().next_token_logprobs(prompts, support)


class Slow(Sentence):
    """Takes its time over a draw, and notes when it begins and ends one."""

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__(sure=0.999999)
        self.folder = Path(folder)
        self.seconds = seconds

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            note(self.folder / "begun")
            time.sleep(self.seconds)
        answer = super().next_token_logprobs(prompts, support)
        if support is not None:
            note(self.folder / "ended")
        return answer


def slow(folder: Path, seconds: float = 0.2) -> Callable[[], Sentence]:
    return partial(Slow, str(folder), seconds)


class OtherModel(Sentence):
    """Writes the public prompt in other tokens."""

    def tokenize(self, text: str) -> list[int]:
        return [0, *super().tokenize(text)]


class Mixing(Sentence):
    """Says that a prompt's answer depends on its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_invariant = False


def note(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")


def notes(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def first_time(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def processes(workers: int = 2) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def ray_executor() -> Executor:
    """A Ray of two workers. Ray gives up after 15 s where its agents start slowly, so it is asked again."""
    import ray

    for attempt in range(ATTEMPTS):
        try:
            ray.init(
                "local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=100_000_000,
                _system_config={"automatic_object_spilling_enabled": False},
            )
            break
        except Exception:
            ray.shutdown()
            if attempt == ATTEMPTS - 1:
                raise
    return dpf.RayExecutor()


class WorkerDied(Exception):
    """What `Mortal` raises in place of an answer."""


class Mortal(ThreadPoolExecutor):
    """Threads of which some die as processes do: without an answer.

    Args:
        deaths: by the number of the task, whether its worker draws before it dies.
    """

    worker_deaths = (WorkerDied,)

    def __init__(self, deaths: dict[int, bool]) -> None:
        super().__init__(1)
        self.deaths = deaths
        self.tasks: list[Any] = []

    def submit(self, fn: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        number = len(self.tasks)
        self.tasks.append(arguments[0])
        if number not in self.deaths:
            return super().submit(fn, *arguments, **named)
        return super().submit(_dies, fn, arguments[0], draws=self.deaths[number])


def _dies(make_draw: Any, task: Any, *, draws: bool) -> None:
    if draws:
        make_draw(task)
    raise WorkerDied


class Twice(ThreadPoolExecutor):
    """Runs every task twice, as engines do that retry by themselves."""

    def submit(self, fn: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        def twice() -> Any:
            fn(*arguments, **named)
            return fn(*arguments, **named)

        return super().submit(twice)
