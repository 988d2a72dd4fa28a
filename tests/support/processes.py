"""Pythons in processes of their own, which import what this one imports, and forked children."""

import os
import sys
from collections.abc import Callable

_TRUE, _FALSE, _RAISED = 17, 1, 2


def environment(**further: str) -> dict[str, str]:
    """This process's environment and module path, with further variables."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **further}


def true_in_child(work: Callable[[], object]) -> bool:
    """Whether it returns something true in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_TRUE if work() else _FALSE)
        finally:
            os._exit(_RAISED)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == _TRUE
