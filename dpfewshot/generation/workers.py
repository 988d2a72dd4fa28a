"""The workers of a run: an executor makes each draw, and the caller keeps the books."""

from __future__ import annotations

import threading
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import replace
from typing import Final, Self

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, BudgetExceeded, DPFewShotError, InvalidPlan
from dpfewshot.generation.draw_task import Drawn, DrawTask, make_draw, public_prompt
from dpfewshot.generation.request import GenerationRequest, Stopped
from dpfewshot.generation.strata import StratumRun
from dpfewshot.generation.worker_backend import BackendFactory, WorkerBackend
from dpfewshot.runtime.redaction import redacted, redacts_errors

_DEATHS: Final = 3
"""Workers that may die in a row on one draw before the run gives up."""


_BROKEN: Final = (
    "a worker process died, or could not read its task, and its pool runs nothing more. "
    "Run again with a new pool: a run with checkpoint=, or the same command with --output, continues"
)
_REFUSED: Final = "the executor takes no tasks: was it shut down?"
_NOT_SENT: Final = (
    "a draw could not be sent to a worker, or its answer could not be read; worker_backend must be a "
    "function that workers can import"
)
_NO_ANSWER: Final = "the executor's future must hold what its task returned, and holds an object of type "


class Workers:
    """Makes the draws of one run on an executor.

    A task is one draw. So the caller records each draw before it is made and each token once it is released,
    as it does for a run of its own, and a worker that dies costs the draw that it had been granted.

    Args:
        executor: runs tasks. Its `worker_deaths` are the exceptions that say that a worker died and that
            others are left; without this attribute there are none.
        backend: of the workers.
    """

    def __init__(self, executor: Executor, backend: WorkerBackend) -> None:
        self._executor = executor
        self._backend = backend
        self._deaths: tuple[type[BaseException], ...] = getattr(executor, "worker_deaths", ())
        self._unknown: tuple[type[BaseException], ...] = (BrokenExecutor, *self._deaths)
        self._running: set[Future[Drawn]] = set()
        self._cancelled = False
        self._lock = threading.Lock()

    @classmethod
    @redacts_errors(None)  # the representation of a factory may hold a key
    def of(
        cls, executor: Executor | None, own: LogprobBackend, factory: BackendFactory | None
    ) -> Self | None:
        """The workers of an executor; None without one.

        Args:
            executor: as above.
            own: the caller's backend.
            factory: makes the backend of each worker; None: they use the caller's.

        Raises:
            InvalidPlan: a factory without an executor, or something else in place of an executor.
        """
        if executor is not None:
            _check_executor(executor)
            return cls(executor, WorkerBackend.of(own, factory))
        if factory is not None:
            raise InvalidPlan("worker_backend= is for the workers of executor=, which is None")
        return None

    def cancel(self) -> None:
        """Drop the tasks that no worker has begun, and take no further ones."""
        with self._lock:
            self._cancelled = True
            running = list(self._running)
        for each in running:
            each.cancel()

    def release(self, run: StratumRun, part: int, request: GenerationRequest) -> list[int]:
        """The tokens of one demonstration. See `TokenLoop.release`.

        If workers die with draws that were charged, the demonstration has fewer tokens, so that the others
        keep their draws. One without a token takes the draws of the last one of its stratum. A stop is
        checked before each draw: what a worker released is recorded whole, and may finish the demonstration.

        Raises:
            BudgetExceeded: no draw is left for it.
            Stopped: the run was cancelled.
            BackendError: the model failed, or workers keep dying.
            LedgerError: a charge could not be recorded.
        """
        released = list(request.prior_tokens)
        limit = request.max_tokens
        deaths = 0
        while len(released) < limit:
            length = min(run.plan.draws.tokens_per_draw, limit - len(released))
            tokens = self._draw(run, part, request, tuple(released), length)
            if tokens is None:
                deaths += 1
                if deaths == _DEATHS:
                    raise BackendError(f"{deaths} workers died in a row on one draw", retryable=True)
                part, limit = _limit(run, part, request, len(released))
                continue
            deaths = 0
            for token in tokens:
                released.append(token)
                request.on_token(token)
            if len(tokens) < length or run.set_up.loop.ended(released):
                break
        return released

    def _draw(
        self,
        run: StratumRun,
        part: int,
        request: GenerationRequest,
        prior: tuple[int, ...],
        length: int,
    ) -> tuple[int, ...] | None:
        """The tokens of one draw; None if its worker died."""
        set_up, units = run.set_up, run.units(part)
        prompt = public_prompt(set_up.writer.for_label(request.label))  # while nothing is delegated: may fail
        vocabulary = set_up.loop.vocabulary
        delegated = run.delegate(part, request)
        task = DrawTask(
            draw=delegated,
            backend=self._backend,
            task=set_up.task,
            mechanism=set_up.mechanism,
            plan=replace(set_up.plan, strata=(run.plan,)),
            units=units,
            certified=set_up.certified,
            partition=set_up.partition,
            random_source=set_up.random_source,
            ends=set_up.loop.ends,
            prompt=prompt,
            vocabulary=vocabulary,
            label=request.label,
            max_tokens=len(prior) + length,
            text_tokens=request.max_tokens,
            prior_tokens=prior,
        )
        try:
            drawn = self._drawn(task)
        except self._unknown as error:
            run.renew(part)
            if isinstance(error, self._deaths):
                return None
            raise BackendError(_BROKEN, retryable=True) from None
        except BaseException:
            run.report(part, asked=True, charged=True)  # it is not known, so it counts as made
            raise
        charged = drawn.charged or not delegated.take_back()
        run.report(part, asked=drawn.asked or charged, charged=charged)
        if drawn.error is not None:
            raise drawn.error
        return drawn.tokens

    def _drawn(self, task: DrawTask) -> Drawn:
        """What became of a task.

        Raises:
            BrokenExecutor, one of the executor's `worker_deaths`: it is not known.
        """
        try:
            future = self._submit(task)
        except BrokenExecutor:
            return Drawn(error=BackendError(_BROKEN, retryable=True))
        except RuntimeError:
            return Drawn(error=BackendError(_REFUSED))
        except Exception as error:  # noqa: BLE001 - its message may quote a record
            return Drawn(error=_not_sent(error))
        return Drawn(error=Stopped()) if future is None else self._answer(future)

    def _answer(self, future: Future[Drawn]) -> Drawn:
        try:
            found: object = future.result()
            if isinstance(found, Drawn):
                return found
            return Drawn(asked=True, charged=True, error=BackendError(_NO_ANSWER + type(found).__name__))
        except self._unknown:
            raise
        except CancelledError:  # Ray may say so of a task that was run
            ended = Stopped() if self._cancelled else BackendError(_REFUSED, retryable=True)
            return Drawn(asked=not future.cancelled(), error=ended)
        except Exception as error:  # noqa: BLE001 - as above
            return Drawn(asked=not isinstance(error, DPFewShotError), error=_not_sent(error))
        finally:
            with self._lock:
                self._running.discard(future)

    def _submit(self, task: DrawTask) -> Future[Drawn] | None:
        with self._lock:
            if self._cancelled:
                return None
            future = self._executor.submit(make_draw, task)
            if not callable(getattr(future, "result", None)) or not callable(getattr(future, "cancel", None)):
                raise BackendError(f"the executor's submit must return a future, not {type(future).__name__}")
            self._running.add(future)
            return future


def _limit(run: StratumRun, part: int, request: GenerationRequest, released: int) -> tuple[int, int]:
    """The part that a demonstration draws from, and how many tokens it may have, once workers died.

    Raises:
        BudgetExceeded: it has none, and no draw is left.
    """
    per_draw = run.plan.draws.tokens_per_draw
    left = run.draws_left_in(part, request.others)
    if not released and not left:
        part, left = run.fullest()
    if not released and not left:
        raise BudgetExceeded(
            f"a worker died with the last draw that was left for {request.label!r}: a further plan needs "
            "further budget"
        )
    return part, min(request.max_tokens, released + left * per_draw)


def _check_executor(executor: object) -> None:
    if isinstance(executor, type):
        raise InvalidPlan(f"executor= is the class {executor.__name__}: pass an object of it")
    if not callable(getattr(executor, "submit", None)):
        raise InvalidPlan(f"executor= is of type {type(executor).__name__}, which has no submit")


def _not_sent(error: Exception) -> BaseException:
    """The error for a task that could not be sent. Accounts and backends that cannot travel say so."""
    if isinstance(error, DPFewShotError):
        return redacted(error, None)
    return BackendError(f"{_NOT_SENT}: {type(error).__name__}")
