"""What was found out about a model on this machine, cached per user until anything it depends on changes.

The operator, who is trusted, owns the cache: whoever can write to it can claim that a check passed. It holds
public facts alone. Without it the check or the measurement runs again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dpfewshot.runtime.files import write_whole

Facts = Mapping[str, str | int | None]
"""Everything that a verdict depends on."""

Verdict = TypeVar("Verdict", bool, str)
"""Whether a check passed, or a name."""

_LARGE = 1 << 28
"""Bytes of a file whose digest is cached: hashing it takes a noticeable part of a second."""

_PROCESSOR = Path("/proc/cpuinfo")
_SAYS_WHICH = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
_STEERING = ("GGML_", "LLAMA_", "GOMP_", "OMP_", "KMP_")


def kept_verdict(facts: Facts, kind: type[Verdict]) -> Verdict | None:
    """Return the cached verdict on exactly these facts; None if no file holds one of this kind."""
    try:
        kept = json.loads(_file(facts).read_text(encoding="utf-8"))
        verdict = kept["verdict"] if kept["facts"] == dict(facts) else None
    except (OSError, RuntimeError, ValueError, LookupError, TypeError):
        return None
    return verdict if isinstance(verdict, kind) else None


def keep_verdict(facts: Facts, verdict: bool | str) -> None:
    """Cache a verdict. If that fails, it is found out again next time."""
    with suppress(OSError, RuntimeError):
        file = _file(facts)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, json.dumps({"facts": dict(facts), "verdict": verdict}, indent=1), mode=0o600)


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
    found = path.stat()
    facts: Facts = {
        "sha256 of": str(path.resolve()),
        "device": found.st_dev,
        "inode": found.st_ino,
        "size": found.st_size,
        "modified": found.st_mtime_ns,
        "changed": found.st_ctime_ns,  # which no program can set
    }
    kept = kept_verdict(facts, str) if found.st_size >= _LARGE else None
    if kept is not None:
        return kept
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if found.st_size >= _LARGE:
        keep_verdict(facts, digest)
    return digest


def _file(facts: Facts) -> Path:
    """Return the file of a verdict on these facts.

    Raises:
        RuntimeError: the user has no home directory.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG Base Directory Specification ignores relative paths
        cache = Path.home() / ".cache"
    name = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()
    return cache / "dpfewshot" / "verdicts" / f"{name}.json"
