"""The processors and the memory that a model in this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The container's CPU limit: microseconds of processor time in each period, and the period."""

MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The container's memory limit in bytes."""

SPINS = "2000"
"""How often an OpenMP thread polls at a barrier before it sleeps."""


def usable_processors() -> int:
    """Return the processors this process may run on, or fewer where its container has a smaller CPU limit.

    More threads than that would wait for threads that are not running.
    """
    bound = len(os.sched_getaffinity(0))
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return max(1, min(bound, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or no limit: "max 100000"
        return bound


def usable_memory() -> int:
    """Return the machine's memory in bytes, or less where this process's container has a smaller limit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(MEMORY_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or no limit: "max"
        return memory


@contextmanager
def short_spin() -> Iterator[None]:
    """Load libgomp within: its threads then sleep early at barriers, unless the user's environment decides.

    libgomp reads GOMP_SPINCOUNT once, when it is loaded. By default its threads spin for milliseconds at
    each of a decode call's hundreds of barriers: where another process wants the same cores, calls took
    twenty times as long. On an idle machine the time is the same.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]
