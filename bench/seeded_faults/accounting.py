"""Faults of accounting, of budgets, of ledgers and of checkpoints."""

from bench.seeded_faults.fault import Fault

ACCOUNTING_AND_LEDGER = (
    Fault(
        "dpfewshot/accounting/pld/compose.py",
        "missing=tilt.mass_above + sum(loss.steps * loss.infinite_mass for loss in cumulants.losses)",
        "missing=0.0",
        "mass outside of the window counts",
        "tests/unit/test_accounting_windows.py",
    ),
    Fault(
        "dpfewshot/accounting/pld/compose.py",
        "np.where(exponents < _LARGEST, weights * error * _weight_norm(order, spacing, length), np.inf)",
        "np.zeros(length)",
        "round-off of the transform counts",
        "tests/unit/test_accounting_windows.py",
    ),
    Fault(
        "dpfewshot/accounting/bounds.py",
        "return [removed] if removed == added else [removed, added]",
        "return [added]",
        "epsilon holds for both neighbours",
        "tests/unit/test_accounting.py",
    ),
    Fault(
        "dpfewshot/accounting/calibration.py",
        "return _noise(_narrow(search.fine, fine, _CLOSE_ENOUGH).fits)",
        "return _noise(_narrow(search.fine, fine, _CLOSE_ENOUGH).small)",
        "the noise that is planned meets the budget",
        "tests/unit/test_accounting.py::test_calibrated_noise_fits_and_is_the_least",
    ),
    Fault(
        "dpfewshot/budget/reservation.py",
        "self._account.draw(self._entry, self.lease, part)",
        "pass",
        "the account counts a draw before it is drawn",
        "tests/unit/test_reservation.py",
    ),
    Fault(
        "dpfewshot/budget/amounts.py",
        "return cls(math.ceil(epsilon), math.ceil(delta))",
        "return cls(math.floor(epsilon), math.floor(delta))",
        "a cost is rounded up",
        "tests/unit/test_account.py tests/contract/test_accounts.py",
    ),
    Fault(
        "dpfewshot/budget/scopes.py",
        "        total = total.plus(amount)\n    return total",
        "        total = total.at_least(amount)\n    return total",
        "partitions and the whole data set add up",
        "tests/unit/test_account.py tests/contract/test_accounts.py",
    ),
    Fault(
        "dpfewshot/ledger/store.py",
        "if not total_over_scopes(sums).fits(limit):",
        "if not spent.fits(limit):",
        "a plan that does not fit is refused",
        "tests/contract/test_accounts.py",
    ),
    Fault(
        "dpfewshot/ledger/rows.py",
        "counting = (entries.c.account_id == account) & (entries.c.state != CANCELLED)",
        "counting = (entries.c.account_id == account) & (entries.c.state.not_in([CANCELLED, RESERVED]))",
        "what is reserved is spent",
        "tests/contract/test_accounts.py",
    ),
    Fault(
        "dpfewshot/ledger/history.py",
        'fields = {name: value for name, value in row.items() if name != "hash"}',
        'fields = {name: value for name, value in row.items() if name not in {"hash", "epsilon"}}',
        "the history's hashes cover the amounts",
        "tests/integration/test_ledger_history.py tests/integration/test_ledger_tampering.py",
    ),
    Fault(
        "dpfewshot/generation/checkpoint.py",
        "left[of] = max(0, left[of] - 1)",
        "left[of] = max(0, left[of] - 0)",
        "a draw that was made is not made again",
        "tests/integration/test_resuming.py tests/integration/test_resuming_killed.py",
    ),
    Fault(
        "dpfewshot/generation/strata.py",
        "draws=min(recorded.draws_left),",
        "draws=max(recorded.draws_left),",
        "what one disjoint part drew, all count as drawn after an interruption",
        "tests/integration/test_resuming.py tests/integration/test_draws.py",
    ),
)
