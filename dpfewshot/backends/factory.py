"""Backends by name: an installed package's entry point, or `package.module:factory`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path

from dpfewshot.backends.protocol import LogprobBackend, not_a_backend
from dpfewshot.errors import BackendError, DPFewShotError

GROUP = "dpfewshot.backends"
"""The entry point group in which a package registers its backends."""


def backend_from(target: str) -> LogprobBackend:
    """Make the backend that a name or an address stands for, by calling its factory without arguments.

    Args:
        target: the name of an entry point in the group `dpfewshot.backends`, or "package.module:factory".
            Modules are looked for in the working folder too, after `sys.path`.

    Raises:
        BackendError: the factory cannot be found, or fails, or returns no backend. The message says why;
            the factory's own exception is the cause.
    """
    module_name, colon, name = target.partition(":")
    if not colon:
        entry = _registered(target)
        module_name, name = entry.module, entry.attr
    elif not (module_name and name):
        raise BackendError(f"write a factory as package.module:factory, not {target!r}")
    elif (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        factory = attrgetter(name)(_imported(module_name))
    except AttributeError:
        raise BackendError(
            f"module {module_name!r} has no {name!r}: name a function or class that makes a backend"
        ) from None
    if not callable(factory):
        raise BackendError(
            f"{name!r} of module {module_name!r} is not callable: name a function or class that makes a "
            "backend"
        )
    return made_by(factory, target)


def registered_names() -> list[str]:
    """Return the names of the backends that installed packages register."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def _registered(name: str) -> EntryPoint:
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if not found:
        names = ", ".join(registered_names()) or "none is registered here"
        raise BackendError(
            f"unknown backend {name!r}; choose an installed one ({names}), or write package.module:factory"
        )
    if len(found) > 1:
        raise BackendError(
            f"several packages register a backend {name!r}; choose {' or '.join(sorted(found))}"
        )
    return next(iter(found.values()))


def made_by(factory: Callable[[], object], target: str) -> LogprobBackend:
    """Call a factory, which messages call `target`. An exception of its own is the cause of ours."""
    try:
        backend = factory()
    except DPFewShotError:
        raise
    except Exception as error:
        raise BackendError(f"{target} raised {type(error).__name__}: call it in Python to see why") from error
    if not isinstance(backend, LogprobBackend):
        raise not_a_backend(f"what {target} returned", backend)
    return backend


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BackendError(f"no module {error.name!r} here: check its name, or install it") from error
        raise BackendError(
            f"module {name!r} needs {error.name!r}, which is not installed in this environment"
        ) from error
    except Exception as error:
        raise BackendError(
            f"importing module {name!r} raised {type(error).__name__}: import it in Python to see why"
        ) from error
