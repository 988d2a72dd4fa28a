"""Are the demonstrations any good? Accuracy in use, with intervals, beside the papers' baselines.

What is measured on private records is private: see `Cell.private`.
"""

from dpfewshot.evaluation.cells import Cell, Results
from dpfewshot.evaluation.scoring import Score, score
from dpfewshot.evaluation.settings import RandomPrivate, Request, Setting, Synthetic, ZeroPrivate, ZeroShot
from dpfewshot.evaluation.summaries import Difference, Summary, difference, summarise
from dpfewshot.evaluation.trials import Experiment, Trial, evaluate

__all__ = [
    "Cell",
    "Difference",
    "Experiment",
    "RandomPrivate",
    "Request",
    "Results",
    "Score",
    "Setting",
    "Summary",
    "Synthetic",
    "Trial",
    "ZeroPrivate",
    "ZeroShot",
    "difference",
    "evaluate",
    "score",
    "summarise",
]
