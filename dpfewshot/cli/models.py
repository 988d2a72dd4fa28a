"""The language model that the options describe, in this process or on its workers; `dpfewshot model`."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.backends.downloads import DOWNLOADS, downloaded, fetch
from dpfewshot.backends.machine import usable_processors
from dpfewshot.cli.printing import json_option, stages
from dpfewshot.errors import BackendError
from dpfewshot.values import check_whole

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend

LLAMA_CPP, OPENAI, HUGGING_FACE = "llama-cpp", "openai", "hugging-face"
BACKENDS: Final = (LLAMA_CPP, OPENAI, HUGGING_FACE)
IN_PROCESS: Final = (LLAMA_CPP, HUGGING_FACE)

PACKAGED: Final = "packaged"
"""The name of the packaged model, the default of llama-cpp."""

CONTEXT_TOKENS: Final = 256
"""The default of `context_tokens` with llama.cpp, which is faster with a short context."""

PLANNED_PROMPTS: Final = 100
"""M of the draws that the backend keeps where M is planned: 1 GB with the packaged model."""

_SERVERS_ARE_SLOW: Final = (
    "a server is first checked with public prompts, then sent every prompt again for each token: expect many "
    "times the seconds of the same model with --backend llama-cpp (docs/how-to/servers.md)"
)


def setting(
    default: Any,
    text: str = "",
    /,
    *flags: str,
    of: Sequence[str] = (),
    section: str = "",
    path: bool = False,
    **further: Any,
) -> Any:
    """Return a dataclass's field that a project file and `--set` set; with a text for --help, an option, too.

    The option's names are `flags`, or the field's. `of` names the backends that have it, if not all do;
    `section` is that of the project file where the dataclass is not one; `path`: the value is one.
    docs/how-to/project-file.md says what each setting is.
    """
    metadata = {"text": text, "flags": flags, "of": of, "section": section, "path": path, "click": further}
    return field(default=default, metadata=metadata, repr=False)  # URLs may have passwords


@dataclass(frozen=True)
class Model:
    """The language model. None stands for the default of its backend."""

    backend: str = setting(
        LLAMA_CPP, f"{', '.join(BACKENDS)}, the name of an installed backend, or package.module:factory."
    )
    model: str | None = setting(
        None,
        "llama-cpp: a GGUF file, its name on the hub or in `dpfewshot model`, or ollama:NAME, by default "
        "packaged, SmolLM2-135M; others: a name or folder.",
    )
    base_url: tuple[str, ...] = setting((), of=[OPENAI])
    api_key_env: str | None = setting(None, of=[OPENAI])
    dialect: str | None = setting(None, of=[OPENAI])
    proxy: str | None = setting(None, of=[OPENAI])
    ca_bundle: str | None = setting(None, of=[OPENAI], path=True)
    device: str | None = setting(None, of=[HUGGING_FACE])
    dtype: str | None = setting(None, of=[HUGGING_FACE])
    gpu_layers: int | None = setting(None, of=[LLAMA_CPP])
    weights: str | None = setting(None, of=[LLAMA_CPP], type=click.Choice(["file", "bf16", "f16", "q8_0"]))
    threads: int | None = setting(None, of=[LLAMA_CPP])
    context_tokens: int | None = setting(None, of=IN_PROCESS)
    decode_batch: int | None = setting(None, of=IN_PROCESS)
    kept_prompts: int | None = setting(None, of=IN_PROCESS)

    def __post_init__(self) -> None:
        if self.backend == LLAMA_CPP and self.model == PACKAGED:
            object.__setattr__(self, "model", None)

    @property
    def is_packaged(self) -> bool:
        """Whether it is the packaged one, which is for trying out."""
        return self.backend == LLAMA_CPP and self.model is None

    @property
    def name(self) -> str:
        """What results call the model."""
        packaged = "SmolLM2-135M (packaged)" if self.is_packaged else self.backend
        return Path(self.model or packaged).name.removesuffix(".gguf")


_OPTIONS: Final = {one.name: one.metadata["of"] or BACKENDS for one in fields(Model) if one.name != "backend"}
"""The backends that have each option."""


def open_backend(
    model: Model, *, prompts: int | None = None, context_tokens: int = CONTEXT_TOKENS
) -> LogprobBackend:
    """Return the backend that the options describe.

    `prompts` is M: llama-cpp and hugging-face keep enough streams for nearly every Poisson draw of this mean,
    by default of `PLANNED_PROMPTS`, of which the planner takes as many as it needs. `context_tokens` is the
    default of this setting with llama.cpp.
    """
    name, given = model.backend, options_of(model)
    mean = PLANNED_PROMPTS if prompts is None else prompts
    check_whole("prompts_per_draw", mean)
    stages()("loading the model")
    from dpfewshot import backends

    kept = {"kept_prompts": mean + math.ceil(4 * math.sqrt(mean))}
    if name == LLAMA_CPP:
        given["model"] = given.get("model") or backends.packaged_model_path()
        return backends.LlamaCpp(**{"context_tokens": context_tokens, **kept, **given})
    if name == OPENAI:
        _need(name, given, "base_url", "model")
        click.echo(_SERVERS_ARE_SLOW, err=True)
        return backends.OpenAICompatible(api_key=_key(given.pop("api_key_env", None)), **given)
    if name == HUGGING_FACE:
        _need(name, given, "model")
        return backends.HuggingFace(**{**kept, **given})
    return backends.backend_from(name)


def options_of(model: Model) -> dict[str, Any]:
    """Return the options that are given. Refuse those that the backend does not have."""
    name = model.backend
    given = {key: getattr(model, key) for key in _OPTIONS if getattr(model, key) not in {None, ()}}
    if name not in BACKENDS and ":" not in name:
        from dpfewshot.backends.factory import registered_names

        names = registered_names()
        if name not in names:
            choices = ", ".join([*BACKENDS, *names])
            raise BackendError(f"unknown --backend {name!r}; choose {choices}, or package.module:factory")
    if strange := [key for key in given if name not in _OPTIONS[key]]:
        known = [key for key, backends in _OPTIONS.items() if name in backends]
        takes = ", ".join(known) or "no settings: its factory configures it"
        raise BackendError(f"--backend {name} has no {', '.join(strange)}: it takes {takes}")
    return given


def _key(variable: str | None) -> str | None:
    if variable is not None and not os.environ.get(variable):
        raise BackendError(f"api_key_env {variable!r}: this environment variable is unset or empty")
    return os.environ[variable] if variable is not None else None


def _need(name: str, given: Mapping[str, Any], *keys: str) -> None:
    if missing := ["--model" if key == "model" else f"--set {key}=..." for key in keys if key not in given]:
        raise BackendError(f"--backend {name} needs {' and '.join(missing)}, or the same in the project file")


# ---- workers ---------------------------------------------------------------------------------------------

LOCAL_RAY: Final = "local"
"""The value of `ray` for a cluster that is started here."""


@contextmanager
def workers_of(
    model: Model, *, workers: int | None, ray: str | None = None, prompts: int | None, ledger: str | None
) -> Iterator[dict[str, Any]]:
    """The arguments of `Synthesizer.generate_all` for so many processes of this host, or a Ray cluster."""
    if ray is None and workers is None:
        yield {}
        return
    if workers is not None:
        check_whole("workers", workers)
    if ray is not None and workers is not None:
        raise click.UsageError("ray and workers exclude each other")
    if ledger is None:
        name = "workers" if ray is None else "ray"
        raise click.UsageError(f"{name} needs --ledger, which workers share")
    if model.backend == OPENAI:
        if workers is None:
            raise click.UsageError(
                "ray has no --backend openai: one client must send all requests to a server; use workers"
            )
        with ThreadPoolExecutor(workers) as threads:
            yield {"executor": threads}
        return
    if workers is not None and model.backend == LLAMA_CPP and model.threads is None:
        model = replace(model, threads=max(1, usable_processors() // workers))
    executor: Any
    if ray is not None:
        from dpfewshot.generation.ray_executor import RayExecutor

        executor = RayExecutor(None if ray == LOCAL_RAY else ray)
    else:  # Ctrl-C on a terminal reaches all processes; workers end after their draw, when the caller says so
        initializer, spawn = partial(signal.signal, signal.SIGINT, signal.SIG_IGN), get_context("spawn")
        executor = ProcessPoolExecutor(workers, mp_context=spawn, initializer=initializer)
    with executor:
        yield {"executor": executor, "worker_backend": partial(open_backend, model, prompts=prompts)}


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def model(context: click.Context, *, as_json: bool) -> None:
    """List the language models that can be fetched by name, and which are on this machine; or fetch one.

    \b
    Example:
      dpfewshot model
      dpfewshot model get qwen-0.5b
    """
    if context.invoked_subcommand is not None:
        return
    if as_json:
        click.echo(json.dumps({"models": [_facts(name, downloaded(name)) for name in DOWNLOADS]}))
        return
    for name, one in DOWNLOADS.items():
        click.echo(f"{name}: {one}{', on this machine' if downloaded(name) else ''}")


@model.command()
@click.argument("name", type=click.Choice([*DOWNLOADS]))
@click.option("--to", "folder", help="The file's folder. Default: the user's, where --model NAME finds it.")
@json_option
def get(*, name: str, folder: str | None, as_json: bool) -> None:
    """Fetch a model from the Python package index, or the rest of it. Its SHA-256 is checked.

    \b
    Example:
      dpfewshot model get qwen-0.5b
      dpfewshot generate ... --model qwen-0.5b
    """
    click.echo(str(DOWNLOADS[name]), err=True)
    path = fetch(name, None if folder is None else Path(folder))
    told = f"{path}: SHA-256 as expected; now give --model {name if folder is None else path}"
    click.echo(json.dumps(_facts(name, path)) if as_json else told)


def _facts(name: str, path: Path | None) -> dict[str, object]:
    return {"name": name, **asdict(DOWNLOADS[name]), "path": path and str(path)}
