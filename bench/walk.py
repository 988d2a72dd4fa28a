"""How much of the package one `generate` passes through: `python -m bench.walk`.

A scripted model, the Gaussian, eight tokens, a fresh draw for each. Counts the calls into the package's files with
`sys.setprofile`, and the statements and transactions of a SQLite ledger with a listener on the engine. The plan is made
before the count begins. Calls vary a little: the number of records drawn is random.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from sqlalchemy import Connection, Engine, event

import dpfewshot as dpf
from dpfewshot.mechanisms import Gaussian

PACKAGE = Path(dpf.__file__).parent
TOKENS = 8
PROMPTS = 4
BUDGET = dpf.PrivacyBudget(100, 1e-3)


@dataclass
class Walk:
    """What was passed through.

    Attributes:
        calls: of functions of the package.
        functions: each once, by its file and first line.
        depth: the most frames of the package below one another.
        statements: sent to the database.
        transactions: committed or rolled back.
    """

    calls: int = 0
    functions: set[tuple[str, int]] = field(default_factory=set)
    depth: int = 0
    statements: int = 0
    transactions: int = 0
    below: int = 0

    @property
    def files(self) -> set[str]:
        """Those of the functions, from the package's folder."""
        return {name for name, _ in self.functions}

    @property
    def rooms(self) -> set[str]:
        """The package's folders, and files beside them."""
        return {Path(name).parts[0] for name in self.files}

    def seen(self, frame: FrameType, what: str, _: object) -> None:
        """The profiler's events."""
        file = Path(frame.f_code.co_filename)
        if what not in {"call", "return"} or not file.is_relative_to(PACKAGE):
            return
        if what == "return":
            self.below -= 1
            return
        self.calls += 1
        self.below += 1
        self.depth = max(self.depth, self.below)
        self.functions.add((str(file.relative_to(PACKAGE)), frame.f_code.co_firstlineno))


@contextmanager
def counted() -> Iterator[Walk]:
    """Counts until it is left."""
    walk = Walk()

    def statement(*_: object) -> None:
        walk.statements += 1

    def transaction(_: Connection) -> None:
        walk.transactions += 1

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "begin", transaction)
    sys.setprofile(walk.seen)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "begin", transaction)


def walked(ledger: str | None) -> Walk:
    """The first demonstration of a plan."""
    task = dpf.Task(name="walk", instruction="Say it.", label_field="L", text_field="T", labels=("a",))
    records = [dpf.Record(text="one. two.", label="a") for _ in range(400)]
    backend = dpf.backends.Scripted(
        vocabulary=["one. ", "two.", "\n"], next_token=lambda _: [0.7, 0.29, 0.01]
    )
    with dpf.Synthesizer(
        task,
        records,
        backend,
        budget=BUDGET,
        mechanism=Gaussian(top_k=None),
        max_tokens=TOKENS,
        account=dpf.open_account(ledger, "walk", create=BUDGET) if ledger else None,
        settings=dpf.Settings(prompts_per_draw=PROMPTS, tokens_per_draw=1),
    ) as synthesizer:
        with counted() as walk:
            made = synthesizer.generate("a")
        if made.token_count != TOKENS:
            raise RuntimeError("the noise ended the text: run it again")
    return walk


def main() -> None:
    """Prints a table of both walks."""
    with TemporaryDirectory() as folder:
        walks = {"in memory": walked(None), "SQLite": walked(f"sqlite:///{folder}/budget.db")}
    print("| | calls | functions | files | rooms | depth | statements | transactions |")
    print("|---|---|---|---|---|---|---|---|")
    for name, walk in walks.items():
        counts = (walk.calls, len(walk.functions), len(walk.files), len(walk.rooms), walk.depth)
        print(f"| {name} | {' | '.join(map(str, counts))} | {walk.statements} | {walk.transactions} |")


if __name__ == "__main__":
    main()
