"""`dpfewshot replace` writes new texts in place of lines that are named or deleted, and costs nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.sample_data import SUPPORT_TICKETS
from tests.cli.test_generate import on_terminals
from tests.cli.test_init import edit, folder, made
from tests.support.commands import Run

__all__ = ["folder", "made"]

SHOTS = 2
LABELS = SUPPORT_TICKETS.labels or ()


def lines() -> list[str]:
    return Path("demos.jsonl").read_text().splitlines()


def labels_of(some: list[str]) -> Counter[str]:
    return Counter(json.loads(line)["label"] for line in some)


@pytest.fixture
def generated(made: Run) -> Run:
    """The command line, in a folder whose `generate` has counted words and written all texts."""
    edit(top_k="# top_k", shots=f"shots = {SHOTS}")
    status, _, err = made("generate")
    assert status == 0
    assert "texts that you would not use: dpfewshot replace writes others in their place, at no cost" in err
    assert labels_of(lines()) == dict.fromkeys(LABELS, SHOTS)
    return made


def spent() -> dpf.PrivacySpend:
    return dpf.open_account("sqlite:///budget.db", "tickets").spent


def test_named_lines_and_deleted_ones_are_replaced_at_no_cost(generated: Run) -> None:
    before, cost = lines(), spent()
    status, out, err = generated("replace", "2", "4-5")
    kept = [line for number, line in enumerate(before, start=1) if number not in {2, 4, 5}]
    assert (status, out, lines()[:7]) == (0, "", kept), err
    assert "writing 3 texts, at no cost" in err
    assert "done: 3 new texts in demos.jsonl, at no further cost" in err
    assert labels_of(lines()) == labels_of(before)

    Path("demos.jsonl").write_text("".join(f"{line}\n" for line in kept[2:]))
    told = json.loads(generated("replace", "--json")[1])
    assert (told["replaced"], told["demonstrations"]) == (5, [json.loads(line) for line in lines()])
    assert lines()[:5] == kept[2:]
    assert "nothing to replace: demos.jsonl has all texts of the plan" in generated("replace")[2]

    Path("demos.jsonl").unlink()
    edit(shots="shots = 3", max_tokens="max_tokens = 5")  # no other plan, and no other budget
    assert generated("replace")[0] == 0
    assert labels_of(lines()) == dict.fromkeys(LABELS, 3)
    assert generated("verify")[0] == 0
    assert spent() == cost
    status, _, err = generated("generate")
    assert (status, "and replace writes other texts" in err) == (3, True)


def test_on_a_terminal_texts_are_listed_and_asked_for_until_none_is_named(
    generated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lines()
    on_terminals(monkeypatch, "stdin stderr", "1 3\n10\n\n")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    status, out, err = generated("replace")
    assert (status, lines()[:7]) == (0, [before[1], *before[3:9]]), err
    listed = [int(line.split()[0]) for line in out.splitlines() if "[" in line]
    assert listed == [*range(1, 11), 9, 10, 10]
    assert err.count("judge only how they read, not by your records") == 1
    assert "done: 3 new texts" in err


REFUSED = {
    "0": "'0' is no line of the output: give numbers such as 2, or 5-7",
    "3-2": "'3-2' is no line of the output",
    "two": "'two' is no line of the output",
    "11": "demos.jsonl: line 11 has no text of this plan's newest run",
    "1 --epsilon 1": "the account has no run of this plan, so no counts are paid for",
    "1 --set top_k=8": "this one draws for each text",
}


def test_what_cannot_be_replaced_is_refused_and_stays_as_do_texts_of_other_runs(generated: Run) -> None:
    first, cost = lines(), spent()
    for words, message in REFUSED.items():
        status, _, err = generated("replace", *words.split())
        assert (status, message in err) == (2, True), err
    assert (lines(), spent()) == (first, cost)
    assert generated("ledger", "change-budget", "--epsilon", "9", "--delta", "1e-4")[0] == 0
    assert generated("generate")[0] == 0
    status, _, err = generated("replace", "1")
    assert (status, "line 1 has no text of this plan's newest run" in err) == (2, True)
    assert generated("replace", "11")[0] == 0
    assert lines()[:10] == first
    assert generated("verify")[0] == 0
