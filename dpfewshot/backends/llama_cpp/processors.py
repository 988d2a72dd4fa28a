"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of processor time in each period, and the period: what a container was given."""


def usable_processors() -> int:
    """Processors that the process is bound to, or fewer where its container has a smaller share of time.

    With more threads than that, each waits for others that are not running.
    """
    bound = len(os.sched_getaffinity(0))
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return max(1, min(bound, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or no limit: "max 100000"
        return bound
