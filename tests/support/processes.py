"""Pythons in processes of their own, which import what this one imports."""

import os
import sys


def environment(**further: str) -> dict[str, str]:
    """This process's environment and module path, with further variables."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **further}
