"""A progress bar on standard error, only if that is a terminal."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress_bar(
    of: Iterable[Any] | None = None, *, desc: str, unit: str, total: int | None = None
) -> tqdm[Any]:
    """A bar that is cleared at its end.

    Args:
        of: what is iterated over.
        desc: what is going on.
        unit: what is counted.
        total: how many there will be; None if nobody knows.
    """
    # tqdm draws nothing on a terminal that states no width, as a container's may
    columns = shutil.get_terminal_size().columns
    return tqdm(of, desc=desc, unit=unit, total=total, ncols=columns, disable=None, leave=False)
