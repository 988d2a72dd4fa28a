"""Ray's workers as a `concurrent.futures.Executor`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar, cast

from dpfewshot.errors import BackendError, needs_extra

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_MEMORY = "/dev/shm"  # noqa: S108 - a file system in memory
"""Where a cluster that is started here keeps records: never on a disk."""


class RayExecutor(Executor):
    """Runs each task in a worker of a Ray cluster. Ray places tasks, starts workers and replaces dead ones.

    Records travel in the memory of the cluster. Every job of a cluster can read them, and its object store
    writes what it has no room for to disk, so use a cluster that serves this data alone and spills nothing
    (docs/how-to/scale.md). If the program is connected to a cluster already, that one is used.

    Args:
        address: of a running cluster, as `ray.init` takes it. None starts one on this host, which spills
            nothing; it lives as long as the program.
        cpus: processors that Ray sets aside for each worker, ≥ 0; a fraction is allowed.
        gpus: GPUs that Ray sets aside for each worker.

    Raises:
        MissingExtra: Ray is not installed.
        BackendError: the cluster cannot be reached or started.
    """

    def __init__(self, address: str | None = None, *, cpus: float = 1, gpus: float = 0) -> None:
        with needs_extra("RayExecutor", "ray"):
            import ray
        if not ray.is_initialized():
            _start(ray, address)
        self._ray: Any = ray
        # No retries: whoever runs a stratum again takes it over from its row.
        self._call: Any = ray.remote(max_retries=0, num_cpus=cpus, num_gpus=gpus)(_call)
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
        """Run a function in a worker. What cannot be pickled is refused here, where nothing prints it.

        Raises:
            RuntimeError: Ray has left its cluster. It would start another one, which spills.
        """
        pickled = self._ray.cloudpickle.dumps((fn, args, kwargs))
        if not self._ray.is_initialized():  # it would start another cluster, which spills
            raise RuntimeError("Ray was shut down")
        return cast("Future[Result]", _RayFuture(self._ray, self._call.remote(pickled)))


class _RayFuture(Future[Any]):
    """The future of a task. `cancel` asks Ray to drop or interrupt the task, which says what became of it."""

    def __init__(self, ray: Any, reference: Any) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._ray = ray
        self._reference = reference
        reference.future().add_done_callback(self._finish)

    def cancel(self) -> bool:
        if self._ray.is_initialized():
            self._ray.cancel(self._reference)
        return False

    def _finish(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        else:
            self.set_exception(error)


def _call(pickled: bytes) -> object:
    from ray import cloudpickle

    function, arguments, named = cloudpickle.loads(pickled)
    return function(*arguments, **named)


def _start(ray: Any, address: str | None) -> None:
    """Reach a cluster, or start one on this host whose objects stay in memory."""
    alone: dict[str, Any] = {
        "include_dashboard": False,
        "object_spilling_directory": _MEMORY,  # what does not fit in the store goes here, too
        "_plasma_directory": _MEMORY,
        "_system_config": {"automatic_object_spilling_enabled": False},
    }
    try:
        ray.init(address or "local", log_to_driver=False, **({} if address else alone))
    except Exception as error:
        message = f"Ray cannot be reached or started: {type(error).__name__}"
        raise BackendError(message, retryable=True) from error
