"""Executors, and backends that workers of other processes can make."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dpfewshot as dpf
from tests.support.scripts import SENTENCE, Hooked, Sentence

SECRET = "the patient of room 4711"
ATTEMPTS = 3
SECONDS = 20.0
"""After which a test that waits fails."""


def sure() -> Sentence:
    """A sentence of 5 tokens, nearly always."""
    return Sentence(sure=0.999999)


HOOKS: dict[str, Callable[[int], object]] = {}


def hooked(hook: Callable[[int], object], *, endless: bool = False) -> Callable[[], Sentence]:
    """A factory that can be pickled; its copies in this process share the hook."""
    name = str(len(HOOKS))
    HOOKS[name] = hook
    return partial(_hooked, name, [" my"] if endless else SENTENCE)


def _hooked(name: str, sentence: Sequence[str]) -> Sentence:
    return Hooked(HOOKS[name], sentence)


def die_once(folder: Path) -> None:
    with suppress(FileExistsError):
        (folder / "killed").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path) -> Sentence:
    """A model that kills its process with -9, at one private prompt of all workers."""
    return Hooked(lambda number: number > 2 and die_once(folder))


def interrupted() -> Sentence:
    """A model that interrupts its process, as Ctrl-C in a terminal does, at its second private prompt."""
    return Hooked(lambda number: number == 2 and os.kill(os.getpid(), signal.SIGINT))


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

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(sure=0.999999)
        self.folder = folder
        self.seconds = seconds

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            note(self.folder / "begun")
            time.sleep(self.seconds)
        answer = super().next_token_logprobs(prompts, support)
        if support is not None:
            note(self.folder / "ended")
        return answer


class OtherModel(Sentence):
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
    """What `Remote` raises in place of an answer."""


class Remote(ThreadPoolExecutor):
    """Threads with a copy of their task, as processes have, and which may seem to die.

    Attributes:
        answers: what each worker returned, those that seemed dead too.
        woken: set, they go on.
    """

    worker_deaths = (WorkerDied,)

    def __init__(self) -> None:
        super().__init__(16)
        self.tasks: list[Any] = []
        self.answers: list[BaseException | None] = []
        self.woken = threading.Event()
        self._own = threading.local()

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        copy, answer = pickle.dumps(arguments[0]), Future[Any]()
        self.tasks.append(copy)
        answer.set_running_or_notify_cancel()
        super().submit(self._work, fn, copy, answer)
        return answer

    def _work(self, fn: Any, copy: bytes, answer: Future[Any]) -> None:
        self._own.answer = answer
        found = fn(pickle.loads(copy))  # noqa: S301 - our own
        self.answers.append(found)
        if not answer.done():
            answer.set_result(found)

    def die(self) -> None:
        """In a worker: seem dead until somebody wakes all of them."""
        self._own.answer.set_exception(WorkerDied())
        assert self.woken.wait(SECONDS)

    def __exit__(self, *error: object) -> None:
        self.woken.set()
        super().__exit__(*error)  # type: ignore[arg-type]


class Pickling(ThreadPoolExecutor):
    """Sends tasks as a pool of processes does; the pickled ones wait for `before`."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(1)
        self.before = before

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        sent = pickle.dumps(arguments)
        self.before()
        return super().submit(lambda: fn(*pickle.loads(sent)))  # noqa: S301 - its own


class Twice(ThreadPoolExecutor):
    """Runs every task twice, as engines do that retry by themselves.

    Args:
        remote: whether each time in a copy.
    """

    def __init__(self, *, remote: bool = False) -> None:
        super().__init__(2)
        self.remote = remote

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        copy = pickle.dumps(arguments[0]) if self.remote else b""

        def twice() -> Any:
            for _ in range(2):
                found = fn(pickle.loads(copy) if self.remote else arguments[0])  # noqa: S301 - our own
            return found

        return super().submit(twice)
