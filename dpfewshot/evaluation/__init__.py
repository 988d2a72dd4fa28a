"""Evaluation: the accuracy that demonstrations give, with intervals, beside the papers' baselines.

What is measured on private records is confidential: see `Cell.confidential`.
"""

from dpfewshot.evaluation.conditions import (
    Condition,
    InstructionOnly,
    NonPrivateSample,
    Request,
    Synthetic,
    ZeroShot,
)
from dpfewshot.evaluation.summaries import Summary, summarise
from dpfewshot.evaluation.trials import Cell, Experiment, Results, Score, Trial, evaluate, read_cells, score

__all__ = [
    "Cell",
    "Condition",
    "Experiment",
    "InstructionOnly",
    "NonPrivateSample",
    "Request",
    "Results",
    "Score",
    "Summary",
    "Synthetic",
    "Trial",
    "ZeroShot",
    "evaluate",
    "read_cells",
    "score",
    "summarise",
]
