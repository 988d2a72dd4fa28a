"""Every seeded fault still finds its line. `make soak` runs the faults."""

from pathlib import Path

import pytest

from tests.seeded_faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]


def test_there_are_two_dozen_at_least_and_none_twice() -> None:
    assert len({(fault.file, fault.text, fault.replacement) for fault in FAULTS}) == len(FAULTS) >= 24


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.breaks for fault in FAULTS])
def test_a_fault_changes_one_place(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text()
    assert text.count(fault.text) == 1
    assert fault.replacement != fault.text
    if fault.file.endswith(".py"):  # what does not compile would be caught by anything
        compile(text.replace(fault.text, fault.replacement), fault.file, "exec")
