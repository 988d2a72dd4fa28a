"""What was promised, spent, released, measured and attacked, as one HTML file that needs no network.

Released facts are shown by default. What was computed from private records outside of the budget is shown
only when it is asked for, and the page then says that it is private.
"""

from dpfewshot.report.contents import Contents, Sources, select
from dpfewshot.report.page import page
from dpfewshot.report.sources import PlanDocument, read_evaluation, read_findings, read_plan
from dpfewshot.report.spending import read_book

__all__ = [
    "Contents",
    "PlanDocument",
    "Sources",
    "page",
    "read_book",
    "read_evaluation",
    "read_findings",
    "read_plan",
    "select",
]
