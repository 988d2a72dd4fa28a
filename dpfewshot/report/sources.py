"""Reads and checks a report's input files. Their contents are shown, never trusted as markup."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfewshot.audit import Finding
from dpfewshot.demonstrations import Demonstrations, from_line
from dpfewshot.errors import InvalidPlan, InvalidReport
from dpfewshot.planning.document import MAYBE_NUMBER, MAYBE_TEXT, check
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.releases.choice import Choice
from dpfewshot.values import PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.evaluation import Cell

File = str | os.PathLike[str]

_CELL: Final[Mapping[str, tuple[type, ...]]] = {
    "task": (str,),
    "model": (str,),
    "writer": (str,),
    "setting": (str,),
    "epsilon_asked": MAYBE_NUMBER,
    "delta": MAYBE_NUMBER,
    "relation": MAYBE_TEXT,
    "shots": (int,),
    "repetition": (int,),
    "items": (int,),
    "outcomes": (str,),
    "uncalibrated": MAYBE_TEXT,
}


@dataclass(frozen=True)
class PlanDocument:
    """What `dpfewshot plan --json` prints, or `generate --json`, which adds the plan's demonstrations.

    Attributes:
        plan: the result of `GenerationPlan.as_dict`.
        demonstrations: the plan's demonstrations, with the plan's cost; None for a plan alone.
    """

    plan: Mapping[str, Any]
    demonstrations: Demonstrations | None

    @property
    def spend(self) -> PrivacySpend | None:
        """The amount that the plan reserves; None without privacy."""
        epsilon, delta = self.plan["epsilon"], self.plan["delta"]
        return None if epsilon is None or delta is None else PrivacySpend(float(epsilon), float(delta))


def read_plan(path: File) -> PlanDocument:
    """Read a plan, or a plan with its demonstrations.

    Raises:
        InvalidReport: the file cannot be read, or is not a plan.
    """
    document = _json(path, _text(path), "what dpfewshot plan --json prints")
    plan = document.get("plan", document)
    try:
        GenerationPlan.from_dict(plan)
    except InvalidPlan as error:
        raise InvalidReport(f"{path}: {error}") from None
    alone = PlanDocument(plan, None)
    lines = document.get("demonstrations")
    if lines is None:
        return alone
    try:
        items = [from_line(line) for line in lines]
    except (TypeError, ValueError):
        raise InvalidReport(f"{path}: one of the demonstrations is malformed") from None
    return PlanDocument(plan, Demonstrations(items, plan_spend=alone.spend))


def read_choice(path: File) -> Choice:
    """Read what `dpfewshot choose --json` prints.

    Raises:
        InvalidReport: the file cannot be read, or is not a choice.
    """
    try:
        return Choice.from_dict(_json(path, _text(path), "what dpfewshot choose --json prints"))
    except InvalidPlan as error:
        raise InvalidReport(f"{path}: {error}") from None


def read_evaluation(path: File) -> list[Cell]:
    """Read the cells of a results file, to which an evaluation may be writing.

    The file is not changed; an incomplete last line is ignored. A cell without `"private"` is confidential.

    Raises:
        InvalidReport: the file cannot be read, or a line is not a cell; the message names it.
    """
    return list(_cells(path))


def read_findings(path: File) -> list[Finding]:
    """Read what `dpfewshot audit --json` prints.

    Raises:
        InvalidReport: the file cannot be read, or a finding is malformed.
    """
    document = _json(path, _text(path), "what dpfewshot audit --json prints")
    try:
        findings = [Finding.from_dict({"private": True, **finding}) for finding in document["findings"]]
    except (KeyError, TypeError, ValueError):
        findings = None
    if findings is None or not all(_is_text(finding) for finding in findings):
        raise InvalidReport(f"{path}: is not what dpfewshot audit --json prints")
    return findings


def _is_text(finding: Finding) -> bool:
    words = [finding.title, finding.statement, *(figure.name for figure in finding.figures)]
    return all(isinstance(each, str) for each in words) and isinstance(finding.details, dict)


def _cells(path: File) -> Iterator[Cell]:
    from dpfewshot.evaluation import Cell

    *whole, _ = _text(path).split("\n")
    for number, line in enumerate(whole, start=1):
        if not line.strip():
            continue
        document = _json(f"{path}: line {number}", line, "a cell of an evaluation")
        check(f"{path}: line {number}", document, _CELL, InvalidReport)
        try:
            yield Cell.from_dict(document)
        except ValueError:
            raise InvalidReport(f"{path}: line {number}: is not a cell of an evaluation") from None


def _json(where: File, text: str, what: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidReport(f"{where}: is not {what}")
    return document


def _text(path: File) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidReport(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidReport(f"{path}: is not UTF-8") from None
