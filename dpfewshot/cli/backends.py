"""Command-line options for backends, and the backend that they describe."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend

LLAMA_CPP, OPENAI, HUGGING_FACE = "llama-cpp", "openai", "hugging-face"

CONTEXT_TOKENS = 256
"""The default of --context-tokens with llama.cpp, which is faster with a short context."""

PLANNED_PROMPTS = 100
"""M of the draws that the backend keeps where M is planned: 1 GB with the packaged model."""

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

# None stands for the default of the constructor, or of the maker below.
_OPTIONS: Mapping[str, Decorator] = {
    "model": click.option(
        "--model",
        default=None,
        help="llama-cpp: a GGUF file, its name on the hub, or ollama:NAME, by default the packaged "
        "SmolLM2-135M; others: a name or folder.",
    ),
    "base_url": click.option(
        "--base-url",
        default=None,
        multiple=True,
        help="openai: the server's address, such as http://host:8000/v1. Repeat it for replicas.",
    ),
    "api_key_env": click.option(
        "--api-key-env",
        default=None,
        metavar="NAME",
        help="openai: the environment variable that holds the API key.",
    ),
    "dialect": click.option(
        "--dialect", default=None, help="openai: the kind of server, such as vllm. Default: detect it."
    ),
    "allow_truncated": click.option(
        "--allow-truncated",
        is_flag=True,
        default=None,
        help="openai: accept a server that returns only the likeliest tokens.",
    ),
    "proxy": click.option(
        "--proxy",
        default=None,
        help="openai: an HTTP proxy. The environment's proxies are never used.",
    ),
    "ca_bundle": click.option(
        "--ca-bundle", default=None, metavar="PATH", help="openai: PEM certificates to trust for https."
    ),
    "device": click.option(
        "--device", default=None, help="hugging-face: cpu, cuda, ... Default: a GPU if there is one."
    ),
    "dtype": click.option("--dtype", default=None, help="hugging-face: float32, bfloat16 or float16."),
    "gpu_layers": click.option(
        "--gpu-layers", type=int, default=None, help="llama-cpp: layers on the GPU, -1 for all. Default: 0."
    ),
    "weights": click.option(
        "--weights",
        type=click.Choice(["auto", "file", "bf16", "f16", "q8_0"]),
        default=None,
        help="llama-cpp: the form of the weights: as in the file, or converted when loading. Default: auto, "
        "the fastest on this machine.",
    ),
    "threads": click.option(
        "--threads",
        type=int,
        default=None,
        help="llama-cpp: worker threads. Default: all processors it may use.",
    ),
    "context_tokens": click.option(
        "--context-tokens",
        type=int,
        default=None,
        help="llama-cpp, hugging-face: the longest prompt, in tokens. Default: "
        f"{CONTEXT_TOKENS} with llama-cpp, 1024 for choose and calibrate.",
    ),
    "decode_batch": click.option(
        "--decode-batch",
        type=int,
        default=None,
        help="llama-cpp, hugging-face: prompts per step; use 1 if doctor says so. Default: 16.",
    ),
    "kept_prompts": click.option(
        "--kept-prompts",
        type=int,
        default=None,
        help="llama-cpp, hugging-face: prompts kept in memory. Default: enough for nearly every draw.",
    ),
}

_KNOWN: Mapping[str, frozenset[str]] = {
    LLAMA_CPP: frozenset(
        {"model", "gpu_layers", "weights", "threads", "context_tokens", "decode_batch", "kept_prompts"}
    ),
    OPENAI: frozenset(
        {"model", "base_url", "api_key_env", "dialect", "allow_truncated", "proxy", "ca_bundle"}
    ),
    HUGGING_FACE: frozenset({"model", "device", "dtype", "context_tokens", "decode_batch", "kept_prompts"}),
}


def backend_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for backends to a command."""
    for option in reversed(list(_OPTIONS.values())):
        command = option(command)
    return click.option(
        "--backend",
        default=LLAMA_CPP,
        show_default=True,
        metavar="NAME",
        help=f"{', '.join(_KNOWN)}, the name of an installed backend, or package.module:factory.",
    )(command)


def open_backend(
    options: Mapping[str, Any],
    *,
    prompts: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> LogprobBackend:
    """Return the backend that the options of `backend_options` describe.

    Args:
        options: values by name; other names are ignored.
        prompts: M: llama-cpp and hugging-face keep enough streams for nearly every Poisson draw of this mean.
            None keeps `PLANNED_PROMPTS`, of which the planner takes as many as it needs.
        tell: is told the stage once the options are checked (`cli.stages`).

    Raises:
        BackendError: an option does not fit the backend, or a required one is missing; or the backend cannot
            be made.
        MissingExtra: a required package is not installed.
    """
    name = options.get("backend", LLAMA_CPP)
    given = {key: options[key] for key in _OPTIONS if options.get(key) not in {None, ()}}
    if name not in _KNOWN and ":" not in name:
        _check_registered(name)
    known = _KNOWN.get(name, frozenset())
    strange = [_flag(key) for key in given if key not in known]
    if strange:
        takes = (
            ", ".join(_flag(key) for key in _OPTIONS if key in known)
            or "no options: its factory configures it"
        )
        raise BackendError(f"--backend {name} has no {', '.join(strange)}: it takes {takes}")
    if tell is not None:
        tell("loading the model")
    return _MAKERS.get(name, _own)(name, given, PLANNED_PROMPTS if prompts is None else prompts)


def _check_registered(name: str) -> None:
    """Refuse a name that neither dpfewshot nor an installed package gives to a backend."""
    from dpfewshot.backends.factory import registered_names

    names = registered_names()
    if name not in names:
        known = ", ".join([*_KNOWN, *names])
        raise BackendError(f"unknown --backend {name!r}; choose {known}, or package.module:factory")


def _llama_cpp(_: str, given: dict[str, Any], prompts: int) -> LogprobBackend:
    from dpfewshot.backends import LlamaCpp, packaged_model_path

    defaults = {"context_tokens": CONTEXT_TOKENS, "kept_prompts": _nearly_every_draw(prompts)}
    model = given.pop("model", None) or packaged_model_path()
    return LlamaCpp(model=model, **{**defaults, **given})


_SERVERS_ARE_SLOW = (
    "a server is first checked with public prompts, then sent every prompt again for each token: expect many "
    "times the seconds of the same model with --backend llama-cpp (docs/how-to/servers.md)"
)


def _openai(_: str, given: dict[str, Any], __: int) -> LogprobBackend:
    from dpfewshot import backends

    _need(OPENAI, given, "base_url", "model")
    click.echo(_SERVERS_ARE_SLOW, err=True)
    variable = given.pop("api_key_env", None)
    if variable is not None and not os.environ.get(variable):
        raise BackendError(f"--api-key-env {variable}: this environment variable is unset or empty")
    key = os.environ[variable] if variable is not None else None
    backend: LogprobBackend = backends.OpenAICompatible(api_key=key, **given)
    return backend


def _hugging_face(_: str, given: dict[str, Any], prompts: int) -> LogprobBackend:
    from dpfewshot import backends

    _need(HUGGING_FACE, given, "model")
    backend: LogprobBackend = backends.HuggingFace(**{"kept_prompts": _nearly_every_draw(prompts), **given})
    return backend


def _nearly_every_draw(prompts: int) -> int:
    """Return a number of prompts that nearly no Poisson draw of this mean exceeds."""
    return prompts + math.ceil(4 * math.sqrt(prompts))


def _own(name: str, _: dict[str, Any], __: int) -> LogprobBackend:
    from dpfewshot.backends import backend_from

    return backend_from(name)


_MAKERS: Mapping[str, Callable[[str, dict[str, Any], int], LogprobBackend]] = {
    LLAMA_CPP: _llama_cpp,
    OPENAI: _openai,
    HUGGING_FACE: _hugging_face,
}


def _need(name: str, given: Mapping[str, Any], *keys: str) -> None:
    missing = [_flag(key) for key in keys if key not in given]
    if missing:
        raise BackendError(f"--backend {name} needs {', '.join(missing)}")


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
