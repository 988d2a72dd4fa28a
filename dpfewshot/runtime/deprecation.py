"""Renamed public names: the old one works and warns with the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dpfewshot.runtime.lazy import imported

P = ParamSpec("P")
T = TypeVar("T")


def deprecated_names(module_name: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names moved.

    Args:
        module_name: the module's `__name__`.
        renamed: each old name with its new address, `"package.module:name"`.

    Example:
        >>> __getattr__ = deprecated_names("dpfewshot.values", {"Spend": "dpfewshot.values:PrivacySpend"})
    """

    def find(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        module, _, new = renamed[name].partition(":")
        package = module_name.partition(".")[0]
        home = package if new in getattr(sys.modules.get(package), "__all__", ()) else module
        warn_renamed(f"{module_name}.{name}", f"{home}.{new}")
        return imported(module, new)

    return find


def renamed_arguments(**renamed: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function take keyword arguments by their old names.

    An old name overrides the new one: `dataclasses.replace` passes both.

    Args:
        renamed: the new name of each old one.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def accepting(*arguments: P.args, **named: P.kwargs) -> T:
            for old in renamed.keys() & named.keys():
                warn_renamed(f"{name}({old}=)", f"{renamed[old]}=")
                named[renamed[old]] = named.pop(old)
            return function(*arguments, **named)

        return accepting

    return decorate


def renamed_fields(**renamed: str) -> Callable[[type[T]], type[T]]:
    """Accept a dataclass's old field names, as arguments and as attributes.

    Args:
        renamed: the new name of each old one.
    """

    def decorate(owner: type[T]) -> type[T]:
        owner.__init__ = renamed_arguments(**renamed)(owner.__init__)  # type: ignore[method-assign]
        for old, new in renamed.items():
            setattr(owner, old, property(_reader(owner.__name__, old, new)))
        return owner

    return decorate


def _reader(owner: str, old: str, new: str) -> Callable[[object], Any]:
    def read(instance: object) -> Any:
        warn_renamed(f"{owner}.{old}", f"{owner}.{new}")
        return getattr(instance, new)

    return read


def warn_renamed(old: str, new: str) -> None:
    """Warn that `old` is now called `new`, at the line outside of this package that uses it.

    Python's default filter shows a warning once for each line.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the interpreter's documented way to the caller
    while frame.f_back is not None and _is_internal(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{old} is deprecated; use {new}",
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_internal(module: str) -> bool:
    """Return whether a frame belongs to this package or to the import system."""
    return module.partition(".")[0] == "dpfewshot" or module.startswith("importlib")
