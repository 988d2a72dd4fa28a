"""A nightly batch: generates demonstrations of every label into a daily file, from one durable budget.

Create the account of all nights once; at 0.2 a night this one lasts for 252. The nights only use it: without
its ledger they fail.

    mkdir -m 700 demonstrations
    cd demonstrations
    export DPFEWSHOT_LEDGER=sqlite:///budget.db
    dpfewshot ledger create --account tickets --epsilon 4 --delta 1e-5 --rule renyi
    cd ..

Then every night:

    python examples/nightly.py --records tickets.jsonl.gz --task tickets.toml --folder demonstrations

Start it again after a crash on the same day, and it resumes. Never start it twice at once: `flock --nonblock`
before the command sees to that. It exits with 3 when the budget is spent.
"""

from __future__ import annotations

import argparse
import datetime as dt
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.backends.protocol import LogprobBackend

BUDGET_EXCEEDED = 3


def packaged_model() -> LogprobBackend:
    """The packaged model; replace it by your own: dpf.backends.LlamaCpp("model.gguf")."""
    return dpf.backends.LlamaCpp(dpf.backends.packaged_model_path(), context_tokens=256)


def main(arguments: Sequence[str], open_backend: Callable[[], LogprobBackend] = packaged_model) -> int:
    """Runs one night and returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--day", default=dt.datetime.now(tz=dt.UTC).date().isoformat())
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO)  # only released facts are logged: docs/how-to/service.md

    with dpf.BudgetLedger.open(f"sqlite:///{options.folder / 'budget.db'}") as ledger:
        account = ledger.account("tickets")  # never created here: a lost ledger must not become a new budget
        synthesizer = dpf.Synthesizer(
            dpf.tasks.by_name(options.task),
            dpf.read_records(options.records),
            open_backend(),
            budget=dpf.PrivacyBudget(epsilon=0.2, delta=1e-6),  # of one night
            max_tokens=16,
            account=account,
        )
        try:
            demonstrations = synthesizer.generate_all(resume=options.day)
        except dpf.BudgetExceeded as error:
            logging.error("nothing more is released: %s", error)  # noqa: TRY400 - a refusal needs no stack
            return BUDGET_EXCEEDED
    demonstrations.to_jsonl(options.folder / f"{options.day}.jsonl")
    logging.info(demonstrations.statement)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
