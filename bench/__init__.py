"""Measurements that print pages of docs/results, run from the root: `python -m bench.core`.

Three modules are read by the tests too: `reproduce` (the papers' figures), `seeded_faults` (faults that the
tests must catch) and `ledger_rounds` with `postgresql` (processes that are killed and that race on a ledger).
The package imports nothing of the tests.
"""
