"""Pythons in processes of their own, which import what this one imports, and forked children."""

import os
import sys
from collections.abc import Callable


def environment(**further: str) -> dict[str, str]:
    """This process's environment and module path, with further variables."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **further}


def in_child(work: Callable[[], object]) -> str:
    """What `work` returns, or how it fails, in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent wants to know
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def true_in_child(work: Callable[[], object]) -> bool:
    return in_child(lambda: bool(work())) == "True"
