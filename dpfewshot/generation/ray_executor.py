"""Ray's workers as a `concurrent.futures.Executor`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, ParamSpec, TypeVar, cast

from dpfewshot.errors import BackendError, MissingExtra

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_MEMORY = "/dev/shm"  # noqa: S108 - a file system in memory
"""Where a cluster that is started here keeps records: never on a disk."""


class RayExecutor(Executor):
    """Runs each task in a worker of a Ray cluster. Ray places tasks, starts workers and replaces dead ones.

    Records travel in the memory of the cluster. Every job of a cluster can read them, and its object store
    writes what it has no room for to disk, so use a cluster that serves this data alone and spills nothing
    (docs/how-to/scale.md).

    Args:
        address: of a running cluster, as `ray.init` takes it. If the program is connected to a cluster
            already, it must be that one's GCS address. None uses that cluster, which spills unless it was
            told not to; without one, it starts a cluster on this host for this executor, which spills
            nothing.
        cpus: processors that Ray sets aside for each worker, ≥ 0; a fraction is allowed.
        gpus: GPUs that Ray sets aside for each worker.

    Raises:
        MissingExtra: Ray is not installed.
        BackendError: the cluster cannot be reached or started, or the program is connected to another one.
    """

    def __init__(self, address: str | None = None, *, cpus: float = 1, gpus: float = 0) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("RayExecutor", "ray") from None
        self._ray: Any = ray
        self._starts = not ray.is_initialized()
        if self._starts:
            _start(ray, address)
        self._cluster: str | None = _cluster(ray)
        if not self._starts and address not in {None, self._cluster}:
            raise BackendError(
                f"Ray is connected to {self._cluster}, not to {address}: call ray.shutdown() before, or give "
                "no address to use that cluster"
            )
        self._lock = threading.Lock()
        # No retries: a task that is run again charges a draw of its own.
        self._call = ray.remote(max_retries=0, num_cpus=cpus, num_gpus=gpus)(_call)
        self.worker_deaths: tuple[type[BaseException], ...] = (
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.NodeDiedError,
            ray.exceptions.OutOfMemoryError,
            ray.exceptions.LocalRayletDiedError,
            ray.exceptions.ObjectLostError,
        )

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """Run a function in a worker. See `Executor.submit`.

        What cannot be pickled is refused here, so that Ray, which would print it, sees bytes alone.

        Raises:
            RuntimeError: `shutdown` was called, or Ray has left the cluster. Ray would start another one,
                which spills.
        """
        pickled = self._ray.cloudpickle.dumps((fn, args, kwargs))
        with self._lock:
            if self._cluster is None or _cluster(self._ray) != self._cluster:
                raise RuntimeError("this RayExecutor was shut down, or Ray has left its cluster")
            reference = self._call.remote(pickled)
        return cast("Future[Result]", _RayFuture(self._ray, reference))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster; stop it if this executor started it. See `Executor.shutdown`."""
        del wait, cancel_futures
        with self._lock:
            if self._starts and self._cluster is not None and _cluster(self._ray) == self._cluster:
                self._ray.shutdown()
            self._cluster = None


class _RayFuture(Future[Any]):
    """The future of a task. `cancel` asks Ray to drop it and lets the task say what became of it."""

    def __init__(self, ray: Any, reference: Any) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._ray = ray
        self._reference = reference
        reference.future().add_done_callback(self._finish)

    def cancel(self) -> bool:
        if self._ray.is_initialized():  # else Ray would start
            self._ray.cancel(self._reference)
        return False

    def _finish(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.TaskCancelledError):
            self.set_exception(CancelledError())
        else:
            self.set_exception(error)


def _call(pickled: bytes) -> object:
    from ray import cloudpickle

    function, arguments, named = cloudpickle.loads(pickled)
    return function(*arguments, **named)


def _cluster(ray: Any) -> str | None:
    """The GCS address of the cluster that the program is connected to; None without one."""
    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else None


def _start(ray: Any, address: str | None) -> None:
    """Reach a cluster, or start one on this host whose objects stay in memory."""
    try:
        if address is not None:
            ray.init(address, log_to_driver=False)
            return
        ray.init(
            "local",
            log_to_driver=False,
            include_dashboard=False,
            object_spilling_directory=_MEMORY,  # what does not fit in the store goes here, too
            _plasma_directory=_MEMORY,
            _system_config={"automatic_object_spilling_enabled": False},
        )
    except Exception as error:
        message = f"Ray cannot be reached or started: {type(error).__name__}"
        raise BackendError(message, retryable=True) from error
