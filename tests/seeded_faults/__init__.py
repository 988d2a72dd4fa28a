"""Faults that break the guarantee, each in a line or two, and the tests of which one must fail.

`make soak` puts them into a copy of the project, one at a time (bench/faults.py). A text must occur in
its file exactly once: a change of such a line changes it here too.
"""

from tests.seeded_faults.accounting import ACCOUNTING_AND_LEDGER
from tests.seeded_faults.choices import CHOICES
from tests.seeded_faults.ends import ENDS
from tests.seeded_faults.fault import Fault
from tests.seeded_faults.generation import LOOP_AND_PARTS
from tests.seeded_faults.sampling import SAMPLING_AND_NOISE

__all__ = ["FAULTS", "Fault"]

FAULTS = (*LOOP_AND_PARTS, *SAMPLING_AND_NOISE, *CHOICES, *ACCOUNTING_AND_LEDGER, *ENDS)
