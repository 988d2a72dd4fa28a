"""What was written about an invented company: docs/results/raw/jargon.json, and its part of docs/results/utility.md.

    python -m bench.utility_jargon STORE

STORE is that of bench/utility_scores.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TypeAlias

from bench import jargon
from bench.utility_data import UNSEEN
from bench.utility_pool import MOST_REPETITIONS, OURS, large
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parents[1] / "docs/results/raw/jargon.json"

Sets: TypeAlias = dict[str, list[list[tuple[str, str]]]]
"""Label and text of ours' demonstrations, by task and repetition. The records are public, and so are these."""


def section() -> str:
    """How many demonstrations hold an invented word."""
    found: Sets = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else {}
    rows = []
    for task, sets in found.items():
        every = [(label, text) for one in sets for label, text in one]
        own = [text for label, text in every if any(word in text for word in jargon.LINES[label])]
        any_line = [
            text
            for _, text in every
            if any(word in text for words in jargon.LINES.values() for word in words)
        ]
        example = own[0] if own else every[0][1]
        rows.append(
            f"| {task} | {len(sets)} | {len(every)} | {len(own)} | {len(any_line) - len(own)} | {example} |"
        )
    return f"""### A task that no model has seen

`jargon`: tickets of an invented company (`bench/jargon.py`), five product lines, each with three words that nothing but the records gives to it. {100 / len(jargon.LINES):.0f} % is chance, and four real
records do not lift Gemma 3 270M above it (`real records` above): with this user the task cannot tell good demonstrations from bad ones, and the table says what was written. `jargon-told` has two public tickets of other lines in the instruction that writes.

| task | sets of ours | demonstrations | with a word of their line | with another line's | the first of them |
|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> None:
    """Writes the raw file from the kept sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    folder = parser.parse_args().store / "sets" / "gemma"
    found: Sets = {}
    for task, data in UNSEEN.items():
        for repetition in range(MOST_REPETITIONS):
            path = folder / f"{task}_{OURS.name}_{large(data)}_r{repetition}.jsonl"
            if path.exists():
                made = [(one.label, one.text) for one in Demonstrations.from_jsonl(path)]
                found.setdefault(task, []).append(made)
    write_whole(RAW, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
