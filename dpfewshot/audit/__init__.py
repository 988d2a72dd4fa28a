"""Audits: what can be learnt about the records from what is released, measured on the trusted side."""

from dpfewshot.audit.findings import Figure, Finding, as_document
from dpfewshot.audit.game import canary_game
from dpfewshot.audit.leak import leak_check

__all__ = ["Figure", "Finding", "as_document", "canary_game", "leak_check"]
