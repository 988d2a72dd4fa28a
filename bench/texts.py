"""Texts of the settings that `init` writes, all of them, not chosen: the README shows the first.

    dpfewshot model get qwen-1.5b
    python -m bench.texts DATA     # adds to bench/results/texts.jsonl, some 10 minutes

One certified text for each topic of banking77 and ε, by Qwen2.5-Coder 1.5B. ε = 0 reads no record.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.baselines import instruction_only_demonstrations
from dpfewshot.prompts.chat import in_chat

TEXTS = Path(__file__).parent / "results/texts.jsonl"
TOKENS = 20

TOPICS = {
    "top up": "top_up|topping",
    "money transfer": "transfer|beneficiary",
    "exchange rate": "exchange|currenc|fiat",
    "card PIN": "pin_|passcode",
    "cash withdrawal": "cash|atm",
    "refund": "refund",
    "card payment": "card_payment|direct_debit",
    "lost or stolen card": "lost|stolen|compromised",
    "new card": "arrival|delivery|getting_spare|getting_virtual|order_physical|activate",
    "identity check": "identity|verif",
}
"""Ten categories of banking77's labels, by expressions."""

BANK = dpf.Task(
    "bank messages",
    "Given a category, write a message that a customer sends to a bank about it.",
    "Category",
    "Message",
    tuple(TOPICS),
)


def messages(path: Path) -> list[dpf.Record]:
    """The questions of a file of banking77, by topic."""
    records = dpf.read_records(path)
    topics = (
        (record, topic) for record in records for topic in TOPICS if re.search(TOPICS[topic], record.label)
    )
    first = {record.text: replace(record, label=topic) for record, topic in reversed([*topics])}
    return list(first.values())


def demonstrations(
    epsilon: int, records: list[dpf.Record], model: dpf.backends.LlamaCpp
) -> Iterable[dpf.Demonstration]:
    """One text a topic."""
    if epsilon == 0:
        return instruction_only_demonstrations(in_chat(BANK, model), model, max_tokens=TOKENS)
    budget = dpf.PrivacyBudget(epsilon, 1e-5)
    return dpf.Synthesizer(BANK, records, model, budget=budget, max_tokens=TOKENS).generate_all()


def main() -> None:
    """Write the rows of one ε when all its texts are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    records = messages(parser.parse_args().data / "banking77.train.jsonl.gz")
    sizes = Counter(record.label for record in records)
    model = dpf.backends.LlamaCpp("qwen-1.5b", kept_prompts=30)
    for epsilon in (0, 1, 4):
        for one in demonstrations(epsilon, records, model):
            row = {"topic": one.label, "units": sizes[one.label], "epsilon": epsilon, "text": one.text}
            with TEXTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
