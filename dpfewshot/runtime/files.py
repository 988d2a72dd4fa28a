"""Reads files of text, and writes files atomically: a crash leaves the old content or the new, no mixture."""

from __future__ import annotations

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dpfewshot.errors import DPFewShotError


def write_whole(path: str | os.PathLike[str], text: str, *, mode: int = 0o666) -> None:
    """Create or replace a file with this text, as UTF-8. Its folder must exist.

    The text goes to a temporary file in the same folder, reaches the disk, and takes the file's name. A
    symbolic link stays, and its target is replaced. A device or a pipe is written to directly. A new file has
    these permissions, before the umask.

    Raises:
        OSError: the file cannot be written. It names `path`, whose content is unchanged.
    """
    content = text.encode("utf-8")
    with replaced(path, mode=mode) as file:
        file.write(content)


@contextmanager
def replaced(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new content for a file, which it has once the block ends without an error. See `write_whole`."""
    try:
        with _replaced(Path(path), mode) as file:
            yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def read_text(path: str | os.PathLike[str], error: type[DPFewShotError], *, if_missing: str = "") -> str:
    """The text of a file in UTF-8, with or without a byte order mark; `error` names a file that has none."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as reason:
        advice = if_missing if isinstance(reason, FileNotFoundError) else ""
        raise error(f"{path}: cannot be read: {reason.strerror}{advice}") from None
    except UnicodeDecodeError:
        raise error(f"{path}: is not UTF-8; convert the file") from None


def toml_tables(text: str, path: str | os.PathLike[str], error: type[DPFewShotError]) -> dict[str, Any]:
    """The tables of a text in TOML; `error` names the file that it is not of."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # a TOMLDecodeError, or an integer of thousands of digits
        # Only the position: somebody may name a private file, whose text must not be quoted.
        place = re.search(r" \(at [a-z0-9, ]+\)$", str(reason))
        raise error(f"{path}: is not TOML{place.group() if place else ''}") from None


def once_each(members: list[tuple[str, Any]], error: type[ValueError]) -> dict[str, Any]:
    """The members of a JSON object, whose names differ: readers differ in which of two values they take."""
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise error(f"has the key {name!r} twice in one object")
        found[name] = value
    return found


@contextmanager
def write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an `OSError` of the block into a `DPFewShotError` that names the file and the reason."""
    try:
        yield
    except OSError as error:
        raise DPFewShotError(f"cannot write {os.fspath(path)}: {error.strerror}") from None


@contextmanager
def _replaced(path: Path, mode: int) -> Iterator[BinaryIO]:
    try:
        existing = path.stat().st_mode
    except FileNotFoundError:
        existing = None
    if existing is not None and not stat.S_ISREG(existing):
        with path.open("wb") as device:
            yield device
        return
    target = path.resolve()
    temporary = target.with_name(f".dpfewshot-{secrets.token_hex(8)}")
    created = mode if existing is None else stat.S_IMODE(existing)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, created)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if existing is not None:
                os.fchmod(descriptor, created)  # past the umask
            yield file
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
