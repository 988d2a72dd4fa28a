"""Support code: error redaction, fork safety, atomic files, progress bars, names imported on first use."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tqdm import tqdm


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` that imports a package's public names on first use, each from its home."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        # A package's own submodule becomes an attribute only once it is imported.
        return vars(home)[name] if name in vars(home) else importlib.import_module(f"{homes[name]}.{name}")

    return find


def progress_bar(
    of: Iterable[Any] | None = None, *, desc: str, unit: str, total: int | None = None
) -> tqdm[Any]:
    """A bar over what is iterated, on standard error if that is a terminal. It is cleared at its end."""
    # tqdm draws nothing on a terminal that states no size, as a container's may
    columns, lines = shutil.get_terminal_size()
    hidden = True if total == 0 else None  # None: unless it is drawn on a terminal
    return tqdm(
        of, desc=desc, unit=unit, total=total, ncols=columns, nrows=lines, disable=hidden, leave=False
    )
