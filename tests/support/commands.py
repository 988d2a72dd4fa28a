"""For tests of the command line: the type of the fixture `command`, and a terminal to answer questions on."""

from collections.abc import Callable
from io import StringIO

Run = Callable[..., tuple[int, str, str]]
"""Takes the words of a command; gives its status, output and errors."""


class Terminal(StringIO):
    """Standard input of somebody who has typed all lines."""

    def isatty(self) -> bool:
        return True
