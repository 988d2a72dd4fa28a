"""Support tickets of an invented company, which no model has read: product lines with invented words.

Nothing but the records says which word belongs to which line. A line has three words, and half of its tickets use the
first. Texts follow from their number alone, so there is no file and no seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import dpfewshot as dpf

LINES = {
    "Harbor": ("skelt", "ondray", "furrocap"),
    "Meadow": ("vishpin", "dallop", "merrow"),
    "Summit": ("gloam ring", "pother", "izzard"),
    "Canyon": ("quaddle", "sterrow", "binch"),
    "Prairie": ("trow plate", "nimmer", "olvane"),
}
"""The words of every product line, the most frequent first."""

SHARES = (50, 30, 20)
"""Of a line's tickets, in per cent, by word."""

TROUBLES = (
    "keeps slipping out", "has cracked again", "makes a grinding noise", "will not lock any more", "is far too warm",
    "came loose on the first day", "blinks and then stops", "leaks a little oil",
)  # fmt: skip
OCCASIONS = (
    "after the last update", "since we moved the unit", "every time it rains", "when two people use it",
    "at the end of each shift", "after about an hour", "since your engineer was here", "only on Mondays",
)  # fmt: skip
OPENINGS = (
    "The {word} {trouble} {occasion}.",
    "Hello, our {word} {trouble} {occasion}, can you help?",
    "We need a new {word}, ours {trouble} {occasion}.",
    "Who repairs a {word}? It {trouble} {occasion}.",
)

EXAMPLES = (
    ("Lagoon", "Please send somebody, our wimlock jams every morning."),
    ("Tundra", "Hello, the brastle squeaks since it was delivered, what can we do?"),
)
"""Public: tickets about lines that are not among the labels, with words of theirs."""

TASK = dpf.Task(
    name="jargon",
    instruction="Given a product line, generate a customer's ticket about the chosen product line accordingly.",
    text_field="Ticket",
    label_field="Product Line",
    labels=tuple(LINES),
)

TRAIN, TEST = 2000, 500


def tickets(split: str) -> list[dpf.Record]:
    """The records of "train" or "test", as many of each line."""
    count = TRAIN if split == "train" else TEST
    return [_ticket(split, number) for number in range(count)]


def _ticket(split: str, number: int) -> dpf.Record:
    line = tuple(LINES)[number % len(LINES)]
    dice = hashlib.sha256(f"{split} {number}".encode()).digest()
    place = int.from_bytes(dice[:4], "big") % 100
    first, second, third = LINES[line]
    word = first if place < SHARES[0] else second if place < SHARES[0] + SHARES[1] else third
    text = _pick(OPENINGS, dice[4:8]).format(
        word=word, trouble=_pick(TROUBLES, dice[8:12]), occasion=_pick(OCCASIONS, dice[12:16])
    )
    return dpf.Record(text, line)


def _pick(among: Sequence[str], dice: bytes) -> str:
    return among[int.from_bytes(dice, "big") % len(among)]
