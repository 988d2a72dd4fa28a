"""Audits: measure, on the trusted side, what releases reveal about the records."""

from dpfewshot.audit.findings import AuditFinding, Figure, as_document
from dpfewshot.audit.game import canary_game
from dpfewshot.audit.leak import leak_check

__all__ = ["AuditFinding", "Figure", "as_document", "canary_game", "leak_check"]
