"""General support code: error redaction, fork safety, atomic files, names imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` that imports a package's public names on first use, each from its home."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        # A package's own submodule becomes an attribute only once it is imported.
        return vars(home)[name] if name in vars(home) else importlib.import_module(f"{homes[name]}.{name}")

    return find
