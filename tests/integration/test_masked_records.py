"""Masked records in plans, prompts, runs and commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.cli import project
from tests.integration.test_index_records import Noting
from tests.support import factory
from tests.support.commands import Run
from tests.support.presidio import needs_presidio
from tests.support.resuming import ledger, synthesizer
from tests.support.scripts import Sentence, tickets, written

FIXTURES = (ledger,)
pytestmark = needs_presidio
MAIL = "ann@example.com"


def rows() -> list[dpf.Record]:
    return [replace(ticket, text=f"{ticket.text} of {MAIL}") for ticket in tickets()]


@pytest.mark.parametrize("mask", [True, False])
def test_no_prompt_has_what_was_masked(mask: bool) -> None:
    listening = Noting()
    records = dpf.mask_identifiers(rows()) if mask else rows()
    plain = factory.synthesizer(Sentence(), rows()).plan
    with factory.synthesizer(listening, records) as made:
        made.generate("refund")
        assert made.plan.epsilon == plain.epsilon
    heard = "\n".join(listening.written)
    assert (MAIL in heard, "<EMAIL_ADDRESS>" in heard) == (not mask, mask)


def test_a_run_is_of_masked_records_or_of_others(ledger: str) -> None:
    masked = dpf.mask_identifiers(rows())
    made = synthesizer(records=masked, ledger=ledger)
    made.generate("refund")
    assert synthesizer(records=masked, ledger=ledger).unfinished
    for other in (rows(), dpf.mask_identifiers(rows(), language="de")):
        assert not synthesizer(records=other, ledger=ledger).unfinished


def test_a_holdout_needs_units_that_masking_leaves_alone() -> None:
    masked = dpf.mask_identifiers(rows())
    with pytest.raises(dpf.InvalidPlan, match="name a unit column"):
        factory.synthesizer(records=masked, holdout=0.2)
    named = [replace(row, unit=f"{MAIL} {number}") for number, row in enumerate(rows())]
    units = [
        factory.synthesizer(records=records, unit="customer", holdout=0.2).set_up
        for records in (dpf.mask_identifiers(named), named)
    ]
    chosen = [
        [unit[0].unit for unit in made.bodies(stratum, 0).units]
        for made in units
        for stratum in made.plan.strata
    ]
    assert chosen[:2] == chosen[2:]


# ---- commands --------------------------------------------------------------------------------------------


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    return [
        *written(tmp_path, rows()), "--epsilon", "4", "--delta", "1e-5",
        "--mechanism", "gaussian", "--prompts-per-draw", "100", "--set", "tokens_per_draw=1",
        "--max-tokens", "8", "--set", "top_k=all",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["plan", "generate"])
@pytest.mark.parametrize("mask", [["--set", "mask_identifiers=en"], ["--set", "mask_identifiers=de"], []])
def test_the_commands_mask_if_they_are_told_to(
    command: Run, verb: str, mask: list[str], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = Noting()
    seen: list[Any] = []
    read = project.Data.read_masked
    monkeypatch.setattr(project, "open_backend", lambda *_, **__: listening)
    monkeypatch.setattr(project.Data, "read_masked", lambda data: seen.append(read(data)) or seen[-1])
    status, *printed = command(verb, *mask, *arguments)
    assert status == 0
    assert (MAIL in seen[0][0].text) == (not mask)
    assert mask or verb == "plan" or MAIL in "".join(listening.written)
    assert MAIL not in "".join(printed)
    assert "EMAIL" not in "".join(printed)


def test_a_resumed_command_masks_as_the_first_did(
    command: Run, arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(project, "open_backend", lambda *_, **__: Noting())
    account = ["--ledger", f"sqlite:///{tmp_path / 'budget.db'}", "--account", "tickets"]
    output = tmp_path / "demos.jsonl"
    generate = ["generate", *arguments, *account, "--set=create=true", "--output", str(output), "--resume"]
    assert command(*generate, "--set", "mask_identifiers=en")[0] == 0
    written = output.read_bytes()
    status, _, told = command(*generate, "--set=holdout=0")
    assert (status, "Exhausted for this plan" in told) == (3, True)
    assert command(*generate, "--set", "mask_identifiers=en")[0] == 0
    assert output.read_bytes() == written
