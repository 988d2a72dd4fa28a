"""Renamed public names: the old one works and warns with the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from dpfewshot.runtime.lazy import imported


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
        warn_renamed(f"{module_name}.{name}", f"{module}.{new}")
        return imported(module, new)

    return find


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
    """Whether a frame belongs to this package or to the import system."""
    return module.partition(".")[0] == "dpfewshot" or module.startswith("importlib")
