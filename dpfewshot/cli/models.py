"""The language model that the options describe, in this process or on its workers."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.backends.machine import usable_processors
from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend

LLAMA_CPP, OPENAI, HUGGING_FACE = "llama-cpp", "openai", "hugging-face"
BACKENDS: Final = (LLAMA_CPP, OPENAI, HUGGING_FACE)
IN_PROCESS: Final = (LLAMA_CPP, HUGGING_FACE)

CONTEXT_TOKENS: Final = 256
"""The default of --context-tokens with llama.cpp, which is faster with a short context."""

PLANNED_PROMPTS: Final = 100
"""M of the draws that the backend keeps where M is planned: 1 GB with the packaged model."""

_SERVERS_ARE_SLOW: Final = (
    "a server is first checked with public prompts, then sent every prompt again for each token: expect many "
    "times the seconds of the same model with --backend llama-cpp (docs/how-to/servers.md)"
)


def option(default: Any, text: str, /, *flags: str, of: Sequence[str] = (), **further: Any) -> Any:
    """Return a dataclass's field with the command-line option that sets it.

    Its names are `flags`, or the field's. `of` names the backends that have it, if not all do. `further` is
    what else `click.option` takes.
    """
    shown = {"default": default, "help": f"{', '.join(of)}: {text}" if of else text, **further}
    return field(default=default, metadata={"flags": flags, "of": of, "option": shown})


@dataclass(frozen=True)
class Model:
    """The language model. None stands for the default of its backend."""

    backend: str = option(
        LLAMA_CPP, f"{', '.join(BACKENDS)}, the name of an installed backend, or package.module:factory."
    )
    model: str | None = option(
        None,
        "llama-cpp: a GGUF file, its name on the hub or in `dpfewshot model`, or ollama:NAME, by default the "
        "packaged SmolLM2-135M; others: a name or folder.",
    )
    base_url: tuple[str, ...] = option(
        (), "the server's address, http://host:8000/v1. Repeat it for replicas.", of=[OPENAI], multiple=True
    )
    api_key_env: str | None = option(None, "the environment variable with the API key.", of=[OPENAI])
    dialect: str | None = option(None, "the kind of server. Default: detect it.", of=[OPENAI])
    allow_truncated: bool | None = option(
        None, "accept a server that returns only the likeliest tokens.", of=[OPENAI], is_flag=True
    )
    proxy: str | None = option(None, "an HTTP proxy; the environment's are never used.", of=[OPENAI])
    ca_bundle: str | None = option(None, "PEM certificates to trust for https.", of=[OPENAI])
    device: str | None = option(None, "cpu, cuda, ... Default: a GPU if there is one.", of=[HUGGING_FACE])
    dtype: str | None = option(None, "float32, bfloat16 or float16.", of=[HUGGING_FACE])
    gpu_layers: int | None = option(None, "layers on the GPU, -1 for all. Default: 0.", of=[LLAMA_CPP])
    weights: str | None = option(
        None,
        "the form of the weights. Default: auto, the fastest on this machine.",
        of=[LLAMA_CPP],
        type=click.Choice(["auto", "file", "bf16", "f16", "q8_0"]),
    )
    threads: int | None = option(None, "worker threads. Default: all usable processors.", of=[LLAMA_CPP])
    context_tokens: int | None = option(
        None,
        f"the longest prompt. Default: {CONTEXT_TOKENS} with llama-cpp, 1024 for choose and calibrate.",
        of=IN_PROCESS,
    )
    decode_batch: int | None = option(
        None, "prompts per step; use 1 if doctor says so. Default: 16.", of=IN_PROCESS
    )
    kept_prompts: int | None = option(
        None, "prompts kept in memory. Default: enough for nearly every draw.", of=IN_PROCESS
    )


_OPTIONS: Final = {one.name: one.metadata["of"] or BACKENDS for one in fields(Model) if one.name != "backend"}
"""The backends that have each option."""


def open_backend(
    model: Model, *, prompts: int | None = None, tell: Callable[[str], None] | None = None
) -> LogprobBackend:
    """Return the backend that the options describe.

    Args:
        model: the options.
        prompts: M: llama-cpp and hugging-face keep enough streams for nearly every Poisson draw of this mean.
            None keeps `PLANNED_PROMPTS`, of which the planner takes as many as it needs.
        tell: is told the stage once the options are checked (`printing.stages`).

    Raises:
        BackendError: an option does not fit the backend, or a required one is missing; or the backend cannot
            be made.
        MissingExtra: a required package is not installed.
    """
    name, given = model.backend, options_of(model)
    if tell is not None:
        tell("loading the model")
    from dpfewshot import backends

    mean = PLANNED_PROMPTS if prompts is None else prompts
    kept = {"kept_prompts": mean + math.ceil(4 * math.sqrt(mean))}
    backend: LogprobBackend
    if name == LLAMA_CPP:
        given["model"] = given.get("model") or backends.packaged_model_path()
        backend = backends.LlamaCpp(**{"context_tokens": CONTEXT_TOKENS, **kept, **given})
    elif name == OPENAI:
        _need(name, given, "base_url", "model")
        click.echo(_SERVERS_ARE_SLOW, err=True)
        backend = backends.OpenAICompatible(api_key=_key(given.pop("api_key_env", None)), **given)
    elif name == HUGGING_FACE:
        _need(name, given, "model")
        backend = backends.HuggingFace(**{**kept, **given})
    else:
        backend = backends.backend_from(name)
    return backend


def options_of(model: Model) -> dict[str, Any]:
    """Return the options that are given. Refuse those that the backend does not have."""
    name = model.backend
    given = {key: getattr(model, key) for key in _OPTIONS if getattr(model, key) not in {None, ()}}
    if name not in BACKENDS and ":" not in name:
        _check_registered(name)
    if strange := [_flag(key) for key in given if name not in _OPTIONS[key]]:
        known = [_flag(key) for key, backends in _OPTIONS.items() if name in backends]
        takes = ", ".join(known) or "no options: its factory configures it"
        raise BackendError(f"--backend {name} has no {', '.join(strange)}: it takes {takes}")
    return given


def _check_registered(name: str) -> None:
    """Refuse a name that neither dpfewshot nor an installed package gives to a backend."""
    from dpfewshot.backends.factory import registered_names

    names = registered_names()
    if name not in names:
        known = ", ".join([*BACKENDS, *names])
        raise BackendError(f"unknown --backend {name!r}; choose {known}, or package.module:factory")


def _key(variable: str | None) -> str | None:
    if variable is not None and not os.environ.get(variable):
        raise BackendError(f"--api-key-env {variable}: this environment variable is unset or empty")
    return os.environ[variable] if variable is not None else None


def _need(name: str, given: Mapping[str, Any], *keys: str) -> None:
    if missing := [_flag(key) for key in keys if key not in given]:
        raise BackendError(f"--backend {name} needs {', '.join(missing)}")


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


# ---- workers ---------------------------------------------------------------------------------------------

LOCAL_RAY: Final = "local"
"""The value of `--ray` without an address."""


def worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for workers."""
    ray = click.option(
        "--ray",
        is_flag=False,
        flag_value=LOCAL_RAY,
        metavar="[ADDRESS]",
        help="Generate several labels at a time on workers of a Ray cluster; without ADDRESS, of one that is "
        "started here. Each loads the model. Needs --ledger.",
    )
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Generate several labels at a time in so many processes of this host. Each loads the model; "
        "with --backend openai, threads that share one client. Needs --ledger.",
    )
    return ray(workers(command))


@contextmanager
def workers_of(
    model: Model, *, prompts: int | None, ray: str | None, workers: int | None, ledger: str | None
) -> Iterator[dict[str, Any]]:
    """The arguments of `Synthesizer.generate_all` for the workers that the options name."""
    if ray is None and workers is None:
        yield {}
        return
    if ray is not None and workers is not None:
        raise click.UsageError("--ray and --workers exclude each other")
    if ledger is None:
        flag = "--workers" if ray is None else "--ray"
        raise click.UsageError(f"{flag} needs --ledger, which workers share")
    if model.backend == OPENAI:
        if workers is None:
            raise click.UsageError(
                "--ray has no --backend openai: one client must send all requests to a server; use --workers"
            )
        with ThreadPoolExecutor(workers) as threads:
            yield {"executor": threads}
        return
    if workers is not None and model.backend == LLAMA_CPP and model.threads is None:
        model = replace(model, threads=max(1, usable_processors() // workers))
    with _executor(ray, workers) as executor:
        yield {"executor": executor, "worker_backend": partial(open_backend, model, prompts=prompts)}


def _executor(ray: str | None, workers: int | None) -> Any:
    if ray is not None:
        from dpfewshot.generation.ray_executor import RayExecutor

        return RayExecutor(None if ray == LOCAL_RAY else ray)
    import multiprocessing

    # Ctrl-C in a terminal reaches all processes; workers end after their draw, as the caller tells them.
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
