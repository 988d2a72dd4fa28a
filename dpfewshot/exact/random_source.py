"""Where random bytes come from: the operating system, unless a test injects its own."""

from __future__ import annotations

from collections.abc import Callable

RandomSource = Callable[[int], bytes]
"""Maps n to n uniform bytes. An optional one is for tests alone: None is the operating system's generator."""
