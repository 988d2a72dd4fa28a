"""Presidio, which takes 250 MB and so is no part of the extra `dev`."""

from importlib.util import find_spec

import pytest

needs_presidio = pytest.mark.skipif(
    find_spec("presidio_analyzer") is None, reason="Presidio is not installed: pip install -e '.[presidio]'"
)
