"""The report: what was promised, spent, released and attacked, in one self-contained HTML file.

By default it shows released facts only. On request it adds what was computed from private records outside the
budget, and then says that it is confidential.
"""

from dpfewshot.report.contents import Contents, Sources, read_choice, read_findings, select
from dpfewshot.report.page import page

__all__ = ["Contents", "Sources", "page", "read_choice", "read_findings", "select"]
