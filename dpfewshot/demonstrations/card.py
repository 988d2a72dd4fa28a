"""The data card of a folder of demonstrations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from dpfewshot.certificates import Certificate
from dpfewshot.values import Demonstration, PrivacySpend, amount_text, counted

DATA_FILE = "demonstrations.jsonl"
"""The file beside the card."""

_SMALL = 1000


def data_card(
    items: Sequence[Demonstration], spent: PrivacySpend | None, relation: str | None, title: str
) -> str:
    """A README.md in Markdown with the header that `datasets` and the Hugging Face hub read.

    `spent` and `relation` are those of all items together; None if no guarantee holds.
    """
    return "\n".join([*_header(len(items), title), "", *_body(items, spent, relation, title), ""])


def _header(count: int, title: str) -> Iterator[str]:
    """YAML; a JSON string is one of YAML too."""
    yield "---"
    yield f"pretty_name: {json.dumps(title)}"
    yield "task_categories: [text-classification]"
    yield "tags: [synthetic, few-shot, differential-privacy]"
    yield f"size_categories: ['{'n<1K' if count < _SMALL else '1K<n<10K'}']"
    yield "configs:"
    yield "- config_name: default"
    yield f"  data_files: {DATA_FILE}"
    yield "---"


def _body(
    items: Sequence[Demonstration], spent: PrivacySpend | None, relation: str | None, title: str
) -> Iterator[str]:
    yield f"# {_cell(title)}"
    yield ""
    yield (
        f"{counted(len(items), 'synthetic few-shot demonstration')}, written by a language model. "
        "No line is a record."
    )
    yield ""
    yield "## Guarantee"
    yield ""
    if spent is None:
        yield "**No guarantee holds for all of them together.** Some are not private, or hold for different"
        yield "neighbours."
        yield ""
    else:
        yield (
            f"Together they are (ε, δ)-differentially private with ε ≤ {amount_text(spent.epsilon)} and "
            f"δ = {amount_text(spent.delta)}, for neighbouring data sets under the relation "
            f"{relation or 'none'}. Any use of them costs no further privacy. What else was "
            "released from the same records adds to this."
        )
        yield ""
    yield "| demonstrations | ε | δ | neighbours | unit | mechanism | version | plan | written by | ledger |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    yield from _rows(items)
    yield ""
    yield "*ε* and *δ* are what the whole plan of these demonstrations reserved. *unit* is the column whose"
    yield "values are protected: all records with one value count as one. *plan* is the SHA-256 of the plan's"
    yield "public facts, which the ledger's entry has too: `dpfewshot verify` compares them. *written by* has"
    yield "the first digits of hashes of the model, its tokenizer and the public prompt; a server claims it."
    yield "*ledger* is the account, and the random identifier of the plan in it."


def _rows(items: Sequence[Demonstration]) -> Iterator[str]:
    counts: dict[tuple[str, ...], int] = {}
    for one in items:
        made, spent = one.certificate, one.spent
        row: tuple[str, ...] = (
            "no guarantee" if spent is None else amount_text(spent.epsilon),
            "no guarantee" if spent is None else amount_text(spent.delta),
            one.relation,
            "unknown" if made is None else made.unit or "each record",
            one.mechanism,
            "unknown" if made is None else made.version,
            "unknown" if made is None else made.plan,
            "unknown" if made is None else _written_by(made),
            "none" if made is None or made.reservation is None else f"{made.dataset}, {made.reservation}",
        )
        counts[row] = counts.get(row, 0) + 1
    for row, count in counts.items():
        yield f"| {count} | {' | '.join(map(_cell, row))} |"


def _written_by(made: Certificate) -> str:
    told = {"model": made.model, "tokenizer": made.tokenizer, "prompt": made.prompt}
    return ", ".join(f"{name} {value or 'unknown'}" for name, value in told.items())


def _cell(text: str) -> str:
    """A text that cannot end its cell or line."""
    return " ".join(text.split()).replace("|", "\\|")
