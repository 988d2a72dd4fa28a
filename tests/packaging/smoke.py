"""What an installed wheel must do, with the `ledger` extra alone: `python smoke.py` in an empty folder.

cibuildwheel runs it for each wheel, and test_wheel.py for the one that it builds.
"""

import tempfile
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.cli.application import run
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets

WORDS = ["my", "parcel", "is", "late", "\n"]


def main() -> None:
    assert "site-packages" in Path(dpf.__file__).parts, dpf.__file__
    with tempfile.TemporaryDirectory() as folder:
        ledger, file = f"sqlite:///{folder}/budget.db", f"{folder}/demos.jsonl"
        with dpf.Synthesizer(
            SUPPORT_TICKETS,
            support_tickets(),
            dpf.backends.Scripted(WORDS, lambda _prompt: [0.2] * 5),
            budget=(budget := dpf.PrivacyBudget(epsilon=4, delta=1e-6)),
            max_tokens=4,
            account=dpf.open_account(ledger, "tickets", create=budget),
            settings=dpf.Settings(prompts_per_draw=20),
        ) as synthesizer:
            synthesizer.generate_all().to_jsonl(file)
        assert run(["verify", file, "--ledger", ledger]) == 0


if __name__ == "__main__":
    main()
