"""Generations that no account pays for: for audits of a set-up, and for experiments with one."""

from __future__ import annotations

from dataclasses import replace

from dpfewshot.generation.generation import Generation
from dpfewshot.generation.set_up import SetUp


def unaccounted(set_up: SetUp) -> Generation:
    """A generation like a synthesizer's that charges nothing, logs nothing, and says `certified=False`.

    Args:
        set_up: `Synthesizer.set_up`, or one that `SetUp.over` or `dataclasses.replace` derived from it.
    """
    return Generation(replace(set_up, certified=False), None)
