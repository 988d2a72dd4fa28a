"""The old name of `dpfewshot.planning.solve`."""

from dpfewshot.planning.solve import Setting, solve

__all__ = ["Setting", "solve"]
