"""Audits: what can be learnt about the records from what is released, measured on the trusted side."""

from dpfewshot.audit.findings import Figure, Finding, as_document

__all__ = ["Figure", "Finding", "as_document"]
