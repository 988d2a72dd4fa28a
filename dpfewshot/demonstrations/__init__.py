"""Collections of released demonstrations, and what other tools read of them."""

from dpfewshot.demonstrations.collection import COLUMNS, Demonstrations, from_line, json_line

__all__ = ["COLUMNS", "Demonstrations", "from_line", "json_line"]
