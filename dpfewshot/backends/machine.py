"""This machine: the processors and memory a model may use, and cached verdicts on models.

A verdict is what was found out about a model here, cached per user until anything it depends on changes. The
operator, who is trusted, owns the cache: whoever can write to it can claim that a check passed. It holds
public facts alone. Without it, the check or the measurement runs again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from dpfewshot.runtime.files import write_whole

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The container's CPU limit: microseconds of processor time in each period, and the period."""

MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The container's memory limit in bytes."""

SPINS = "2000"
"""How often an OpenMP thread polls at a barrier before it sleeps."""

Facts = Mapping[str, str | int | None]
"""Everything that a verdict depends on."""

Verdict = TypeVar("Verdict", bool, str)
"""Whether a check passed, or a name."""

_LARGE = 1 << 28
"""Bytes of a file whose digest is cached: hashing it takes a noticeable part of a second."""

_PROCESSOR = Path("/proc/cpuinfo")
_SAYS_WHICH = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
_STEERING = ("GGML_", "LLAMA_", "GOMP_", "OMP_", "KMP_")


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


def user_folder() -> Path:
    """Return the user's folder for what can be found out or fetched again; `RuntimeError` without a home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG Base Directory Specification ignores relative paths
        cache = Path.home() / ".cache"
    return cache / "dpfewshot"


def verdict_on(facts: Facts, kind: type[Verdict], find: Callable[[], Verdict]) -> Verdict:
    """Return the cached verdict on exactly these facts; find it, and cache it, if no file holds one.

    If it cannot be cached, it is found out again next time.
    """
    with suppress(OSError, RuntimeError, ValueError, LookupError, TypeError):
        kept = json.loads(_file(facts).read_text(encoding="utf-8"))
        verdict = kept["verdict"]
        if kept["facts"] == dict(facts) and isinstance(verdict, kind):
            return verdict
    found = find()
    with suppress(OSError, RuntimeError):
        file = _file(facts)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, json.dumps({"facts": dict(facts), "verdict": found}, indent=1), mode=0o600)
    return found


def processor() -> str:
    """Return the processor's model and its instruction sets."""
    try:
        first = _PROCESSOR.read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = (line.partition(":") for line in first.splitlines())
    return "; ".join(value.strip() for name, _, value in lines if name.strip() in _SAYS_WHICH)


def steering_variables() -> str:
    """Return the environment variables that choose kernels or threads."""
    return "; ".join(
        f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_STEERING)
    )


def digest_of(*files: Path) -> str:
    """Return the SHA-256 of a file; of several, that of their digests, in this order."""
    digests = [_digest_of(path) for path in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256(bytes.fromhex("".join(digests))).hexdigest()


def _digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; of a large one as it is cached, until the file changes."""

    def digest() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    found = path.stat()
    if found.st_size < _LARGE:
        return digest()
    facts: Facts = {
        "sha256 of": str(path.resolve()),
        "device": found.st_dev,
        "inode": found.st_ino,
        "size": found.st_size,
        "modified": found.st_mtime_ns,
        "changed": found.st_ctime_ns,  # which no program can set
    }
    return verdict_on(facts, str, digest)


def _file(facts: Facts) -> Path:
    """Return the file of a verdict on these facts; `RuntimeError` without a home."""
    name = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()
    return user_folder() / "verdicts" / f"{name}.json"
