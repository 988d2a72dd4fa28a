"""Sample data: the same tickets everywhere, and every secret in them known."""

from __future__ import annotations

import hashlib

from dpfewshot.sample_data import secrets, support_tickets
from dpfewshot.values import Record

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
