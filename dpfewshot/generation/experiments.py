"""Generations that no account pays for: for audits of a set-up, and for experiments with one."""

from __future__ import annotations

from dataclasses import replace

from dpfewshot.budget.reservation import Accountant
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.telemetry import Silence


def unaccounted(set_up: SetUp) -> Generation:
    """Generate as a synthesizer does, charge nothing, and say `private=False`.

    Args:
        set_up: `Synthesizer.set_up`, or one that `SetUp.over` or `dataclasses.replace` made of it.
    """
    return Generation(replace(set_up, certified=False), Accountant(None), Silence())
