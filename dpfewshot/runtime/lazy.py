"""Names that a package imports on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` that imports a package's public names on first use, each from its home."""

    def find(name: str) -> Any:
        if name in homes:
            return imported(homes[name], name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def imported(module: str, name: str) -> Any:
    """Do `from module import name`."""
    found = importlib.import_module(module)
    # A package's own submodule becomes an attribute only once it is imported.
    return vars(found)[name] if name in vars(found) else importlib.import_module(f"{module}.{name}")
