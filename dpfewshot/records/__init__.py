"""Private records, in memory or left in their file, and the units that they belong to."""

from dpfewshot.records.identifiers import mask_identifiers
from dpfewshot.records.index import index_records
from dpfewshot.records.reading import as_records, read_records

__all__ = ["as_records", "index_records", "mask_identifiers", "read_records"]
