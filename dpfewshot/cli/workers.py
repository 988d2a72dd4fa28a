"""`--workers` and `--ray`: who makes the draws of a command."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from dpfewshot.backends.machine import usable_processors
from dpfewshot.cli.backends import LLAMA_CPP, OPENAI, open_backend

_LOCAL = "local"
"""The value of `--ray` without an address."""


def worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for workers to a command."""
    ray = click.option(
        "--ray",
        is_flag=False,
        flag_value=_LOCAL,
        default=None,
        metavar="[ADDRESS]",
        help="Generate several labels at a time on workers of a Ray cluster; without ADDRESS, of one that "
        "is started here. Each loads the model. Needs --ledger.",
    )
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=None,
        help="Generate several labels at a time in so many processes of this host. Each loads the model; "
        "with --backend openai, threads that share one client. Needs --ledger.",
    )
    return workers(ray(command))


@contextmanager
def workers_of(
    options: Mapping[str, Any], *, ray: str | None, workers: int | None, ledger: str | None
) -> Iterator[dict[str, Any]]:
    """The arguments of `Synthesizer.generate_all` for the workers that the options name.

    Args:
        options: of the backend.
        ray: the value of --ray.
        workers: the value of --workers.
        ledger: the value of --ledger.

    Raises:
        UsageError: both are given, there is no ledger, or workers of Ray would share a server.
    """
    if ray is None and workers is None:
        yield {}
        return
    if ray is not None and workers is not None:
        raise click.UsageError("--ray and --workers exclude each other")
    if ledger is None:
        raise click.UsageError(
            f"{'--workers' if ray is None else '--ray'} needs --ledger, which workers share"
        )
    if options["backend"] == OPENAI:
        if workers is None:
            raise click.UsageError(
                "--ray has no --backend openai: one client must send all requests to a server; use --workers"
            )
        with ThreadPoolExecutor(workers) as threads:
            yield {"executor": threads}
        return
    own = dict(options)
    if workers is not None and own["backend"] == LLAMA_CPP and own["threads"] is None:
        own["threads"] = max(1, usable_processors() // workers)
    factory = partial(open_backend, own, prompts=options["prompts_per_draw"])
    with _executor(ray, workers) as executor:
        yield {"executor": executor, "worker_backend": factory}


def _executor(ray: str | None, workers: int | None) -> Any:
    if ray is not None:
        from dpfewshot.generation.ray_executor import RayExecutor

        return RayExecutor(None if ray == _LOCAL else ray)
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Ctrl-C in a terminal reaches all processes; workers end after their draw, as the caller tells them.
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
