"""The type of the fixture `command`, which runs the command line in this process."""

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
"""Takes the words of a command; gives its status, output and errors."""
