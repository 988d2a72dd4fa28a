"""Measurements that print pages of docs/results, run from the root: `python -m bench.core`.

The tests read some modules too: `reproduce` (the papers' figures), and `ledger_rounds` with `postgresql`
(processes that are killed and that race on a ledger). Only `faults` imports something of the tests.
"""
