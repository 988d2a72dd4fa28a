"""Sample data: the same tickets everywhere, and every secret in them known."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING

from dpfewshot.records import read_records
from dpfewshot.sample_data import secrets, support_tickets, write_jsonl
from dpfewshot.values import Record

if TYPE_CHECKING:
    from pathlib import Path

TICKETS = support_tickets()


def test_the_tickets_are_the_same_everywhere() -> None:
    # Reference results rest on these very tickets. A change of wording changes this line and says so.
    whole = "\n".join(f"{ticket.label}\t{ticket.text}" for ticket in TICKETS)
    assert hashlib.sha256(whole.encode()).hexdigest()[:16] == "0f5a151e59b90250"
    assert support_tickets() == TICKETS


def test_every_ticket_holds_a_secret_and_shares_none() -> None:
    found = [secrets([ticket]) for ticket in TICKETS]
    assert all(found)
    assert sum(map(len, found)) == len(frozenset().union(*found)) == len(secrets(TICKETS))


def test_secrets_are_found_wherever_they_stand() -> None:
    said = "(ORD-48213-K), mail a.b+c-12@example.org. Not ORD-482133-K, not x@example.de."
    assert secrets([Record(said, "x")]) == {"ORD-48213-K", "a.b+c-12@example.org"}
    for ticket in TICKETS:
        # What looks like one and is not found would slip through the check of a demonstration.
        rest = ticket.text
        for secret in secrets([ticket]):
            rest = rest.replace(secret, "")
        assert "@" not in rest
        assert "ORD" not in rest


def test_the_written_file_reads_back(tmp_path: Path) -> None:
    records = [*TICKETS[:20], Record("é\u2028\n", "Refund", "u")]
    write_jsonl(records[:20], tmp_path / "without.jsonl")
    write_jsonl(records[20:], tmp_path / "with.jsonl")
    assert read_records(tmp_path / "without.jsonl") == records[:20]
    assert read_records(tmp_path / "with.jsonl", unit="unit") == records[20:]


def test_the_generator_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dpfewshot.sample_data"]
    subprocess.run([*command, str(tmp_path / "t.jsonl")], check=True)
    assert read_records(tmp_path / "t.jsonl") == TICKETS
    wrong = subprocess.run(command, check=False, capture_output=True, text=True)
    assert wrong.returncode != 0
    assert "usage" in wrong.stderr
