"""The command line, `dpfewshot COMMAND`. Every command has --help with an example, and --json."""

from dpfewshot.cli.application import main

__all__ = ["main"]
