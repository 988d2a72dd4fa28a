"""The report: what was promised, spent, released, measured and attacked, in one self-contained HTML file.

By default it shows released facts only. On request it adds what was computed from private records outside the
budget, and then says that it is confidential.
"""

from dpfewshot.report.contents import Contents, Sources, select
from dpfewshot.report.page import page
from dpfewshot.report.sources import PlanDocument, read_choice, read_evaluation, read_findings, read_plan
from dpfewshot.report.spending import read_snapshot

__all__ = [
    "Contents",
    "PlanDocument",
    "Sources",
    "page",
    "read_choice",
    "read_evaluation",
    "read_findings",
    "read_plan",
    "read_snapshot",
    "select",
]
