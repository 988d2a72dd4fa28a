"""Generations that no account pays for: for audits of a set-up, and for experiments with one."""

from __future__ import annotations

from dataclasses import replace

from dpfewshot.accounting.accountant import Accountant
from dpfewshot.generation import Generation
from dpfewshot.observability import Silence
from dpfewshot.set_up import SetUp


def unaccounted(set_up: SetUp) -> Generation:
    """Generate as a synthesizer does, charge nothing, and say `private=False`.

    Args:
        set_up: `Synthesizer.set_up`, or one that `SetUp.over` or `dataclasses.replace` made of it.
    """
    return Generation(replace(set_up, certified=False), Accountant(None), Silence())
