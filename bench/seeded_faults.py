"""Faults that break the guarantee, each in a line or two, and the tests of which one must fail.

`make soak` puts them into a copy of the project, one at a time (bench/faults.py). A text must occur in
its file exactly once: a change of such a line changes it here too.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A change that must not pass.

    Attributes:
        file: from the project's root.
        text: the text to replace, which occurs exactly once.
        replacement: the faulty text.
        breaks: the property that no longer holds.
        tests: arguments of pytest; at least one of the tests must fail.
    """

    file: str
    text: str
    replacement: str
    breaks: str
    tests: str

    @property
    def compiled(self) -> bool:
        """Whether the core must be rebuilt."""
        return self.file.startswith("csrc/")


WIRING = "tests/integration/test_wiring.py"

LOOP_AND_PARTS = (
    Fault(
        "dpfewshot/generation/token_loop.py",
        "winner = release.token(logprobs, public_row[support], permit)",
        "winner = release.token(\n"
        "    logprobs, logprobs.mean(axis=0) if suffixes else public_row[support], permit)",
        "centres are public",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/token_loop.py",
        "support = release.support(public_row, frozenset() if released else self.ends)",
        "support = release.support(_answer(private, len(suffixes), None).mean(axis=0) if suffixes\n"
        "    else public_row, frozenset() if released else self.ends)",
        "supports are public",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/token_loop.py",
        "subsets = [[units[unit][record] for unit, record in drawn] for drawn in sampler.draw(sizes)]",
        "once = locals().get('once') or sampler.draw(sizes)\n"
        "                subsets = [[units[unit][record] for unit, record in drawn] for drawn in once]",
        "every block has a draw of its own",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/token_loop.py",
        "permit = charge()  # before it draws",
        "permit = locals().get('permit') or charge()",
        "every draw is charged",
        "tests/integration/test_synthesizer.py",
    ),
    Fault(
        "dpfewshot/generation/set_up.py",
        "return PoissonSampler(stratum.sampling_rate, prompts, records, self.random_source)",
        "return PoissonSampler(max(each.sampling_rate for each in self.plan.strata), prompts, records,\n"
        "    self.random_source)",
        "a label is sampled at its own rate",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/set_up.py",
        "return start_release(self.mechanism, stratum.draws, stratum.noise_multiplier, self.random_source)",
        "return start_release(self.mechanism, stratum.draws.__class__(**(vars(stratum.draws) | {'row_change':\n"
        "    type(stratum.draws.row_change).ADDED})), stratum.noise_multiplier, self.random_source)",
        "the noise is that of N records in a prompt",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/units.py",
        "return {None: tuple(units(records))}",
        "return {None: tuple((record,) for record in records)}",
        "free labels: all records of a unit are one",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/set_up.py",
        "members = disjoint_parts(len(bodies), parts, self.random_source)",
        "members = [range(len(bodies))] * parts",
        "disjoint parts are disjoint",
        "tests/integration/test_draws.py tests/integration/test_synthesizer.py",
    ),
    Fault(
        "dpfewshot/generation/strata.py",
        "        self.reservation = None\n        self.worker.after_fork()",
        "        self.worker.after_fork()",
        "a forked child does not draw from its parent's plan",
        "tests/integration/test_service.py",
    ),
    Fault(
        "dpfewshot/planning/plan.py",
        "return functools.reduce(Amount.at_least, costs) if costs else None",
        "return min(costs) if costs else None",
        "a plan states the greatest epsilon of its parts",
        "tests/unit/test_plans.py",
    ),
    Fault(
        "dpfewshot/synthesizer.py",
        "sound = backend.batch_invariant and self._random_source is None and accounting == CERTIFIED",
        "sound = backend.batch_invariant and accounting == CERTIFIED",
        "what was made with a seed says private=False",
        "tests/integration/test_synthesizer.py",
    ),
)

SAMPLING_AND_NOISE = (
    Fault(
        "dpfewshot/sampling.py",
        "prompt = unit if self.records_per_prompt == 1 else int(assignment[unit])",
        "prompt = unit if self.records_per_prompt == 1 else sum(map(len, subsets.values())) // 2",
        "a unit moves no other unit to another prompt",
        "tests/property/test_sensitivity.py tests/unit/test_sampling.py",
    ),
    Fault(
        "dpfewshot/sampling.py",
        "        members[label].append(tuple(record for record in unit if record.label == label))",
        "        for label in counts:\n"
        "            members[label].append(tuple(record for record in unit if record.label == label))",
        "a unit is in one part of the partition",
        "tests/unit/test_sampling.py",
    ),
    Fault(
        "dpfewshot/sampling.py",
        "members[part].append(unit)",
        "members[unit * parts // units].append(unit)",
        "disjoint parts are drawn, not cut",
        "tests/statistical/test_samplers.py tests/integration/test_draws.py tests/property",
    ),
    Fault(
        "dpfewshot/planning/plan.py",
        "sampling_rate=rounded_up(sampling_rate)",
        "sampling_rate=float(sampling_rate) * (1 - 2**-40)",
        "q is accounted no smaller than it is drawn",
        "tests/property/test_rates.py tests/integration/test_draws.py tests/integration/test_synthesizer.py",
    ),
    Fault(
        "csrc/normal.pxd",
        "GUARD = 64  # in units of 2^-64; the proof needs 10",
        "GUARD = 4",
        "the sampler is exact",
        "tests/unit/test_exact_normal.py",
    ),
    Fault(
        "csrc/choice.pxd",
        "CHOICE_GUARD = 256  # in units of 2^-64; the proof needs 140",
        "CHOICE_GUARD = 16",
        "choices are exact",
        "tests/unit/test_exact_choice.py",
    ),
    Fault(
        "csrc/vectors.pxd",
        "cdef uint128 allowed = <uint128>bound * bound",
        "cdef uint128 allowed = 2 * <uint128>bound * bound",
        "a centred row has norm C at most",
        "tests/property/test_vectors.py",
    ),
    Fault(
        "csrc/vectors.pxd",
        "multiplier = ((<uint128>GRID) << normaliser.shift) / <uint128>total",
        "multiplier = ((<uint128>GRID) << normaliser.shift) / <uint128>total + 1",
        "a row of probabilities sums to 1 at most",
        "tests/property/test_vectors.py",
    ),
    Fault(
        "dpfewshot/mechanisms/base.py",
        "        permit.use(self.noise_multiplier)\n",
        "",
        "nothing is released that was not charged",
        "tests/contract/test_mechanisms.py",
    ),
    Fault(
        "dpfewshot/accounting/events.py",
        "if relation not in event.relations:",
        "if not event.relations:",
        "a plan is priced for its own neighbours",
        "tests/integration/test_draws.py",
    ),
    Fault(
        "dpfewshot/mechanisms/noise.py",
        "return -(-scale // 8) * 8",
        "return max(scale // 8 * 8, 8)",
        "the noise scale is rounded up",
        "tests/unit/test_gaussian.py",
    ),
    Fault(
        "dpfewshot/mechanisms/noise.py",
        "shared_multiplier = noise_multiplier / math.sqrt(draws.tokens_per_draw)",
        "shared_multiplier = noise_multiplier",
        "R tokens on a draw cost R releases",
        "tests/contract/test_mechanisms.py tests/unit/test_gaussian.py",
    ),
    Fault(
        "dpfewshot/mechanisms/gaussian.py",
        "return _Release(self.top_k, noise_multiplier, draws.row_change.rows, decoding, random_source)",
        "return _Release(self.top_k, noise_multiplier, 1, decoding, random_source)",
        "N > 1 has sensitivity sqrt(2)",
        "tests/unit/test_gaussian.py tests/contract/test_mechanisms.py",
    ),
    Fault(
        "dpfewshot/budget/permit.py",
        "if noise_multiplier != self._noise_multiplier:",
        "if noise_multiplier > self._noise_multiplier:",
        "nothing is drawn with less noise than was charged",
        "tests/contract/test_mechanisms.py",
    ),
    Fault(
        "dpfewshot/labels.py",
        "return sorted(kept, key=lambda label: (-noisy[label], label))[: self.count]",
        "return sorted(kept, key=lambda label: (-votes[label], label))[: self.count]",
        "the order of released labels is that of their noisy votes",
        "tests/unit/test_labels.py tests/property/test_labels.py",
    ),
    Fault(
        "dpfewshot/labels.py",
        "    return 1 + high\n",
        "    return high\n",
        "a label of one unit comes out with probability delta at most",
        "tests/unit/test_labels.py tests/statistical/test_labels.py",
    ),
)

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
        "tests/integration/test_ledger_history.py",
    ),
    Fault(
        "dpfewshot/generation/checkpoint.py",
        "left[of] = max(0, left[of] - 1)",
        "left[of] = max(0, left[of] - 0)",
        "a draw that was made is not made again",
        "tests/integration/test_resuming.py",
    ),
    Fault(
        "dpfewshot/generation/strata.py",
        "draws=min(recorded.draws_left),",
        "draws=max(recorded.draws_left),",
        "what one disjoint part drew, all count as drawn after an interruption",
        "tests/integration/test_resuming.py tests/integration/test_draws.py",
    ),
)

ENDS = (
    Fault(
        "dpfewshot/backends/servers/probe.py",
        "row.tobytes() == alone[place].tobytes() for row,",
        "np.abs(row - alone[place]).max() <= 1e-6 for row,",
        "a prompt has the same bits alone and among others",
        "tests/contract/test_server_dialects.py tests/contract/test_server_load.py",
    ),
    Fault(
        "dpfewshot/backends/servers/llama_server.py",
        '"cache_prompt": False,',
        '"cache_prompt": True,',
        "no answer depends on the prompts before",
        "tests/contract/test_server_network.py tests/contract/test_server_load.py",
    ),
    Fault(
        "dpfewshot/backends/servers/llama_server.py",
        '"parse_special": False}',
        '"parse_special": True}',
        "special tokens in private text are never parsed",
        "tests/contract/test_servers.py",
    ),
    Fault(
        "dpfewshot/prompts/writer.py",
        "if not is_failure(error) or may_pass(error):",
        "if not is_failure(error) or isinstance(error, BackendError):",
        "a record that cannot be tokenised is a null and no error",
        "tests/unit/test_prompts.py tests/integration/test_synthesizer.py",
    ),
    Fault(
        "dpfewshot/prompts/writer.py",
        "return self.tokenizer.tokenize(line[: 16 * self.record_token_cap])[: self.record_token_cap]",
        "return self.tokenizer.tokenize(line[: 16 * self.record_token_cap])",
        "a record has a cap of its own",
        "tests/unit/test_prompts.py",
    ),
    Fault(
        "dpfewshot/records.py",
        'raise InvalidRecords(f"{where}: is not JSON; put one object on each line") from None',
        'raise InvalidRecords(f"{where}: {line!r} is not JSON; put one object on each line") from None',
        "no message quotes a record",
        "tests/unit/test_records.py tests/integration/test_cli.py",
    ),
    Fault(
        "dpfewshot/generation/telemetry.py",
        '"error": type(error).__name__',
        '"error": str(error)',
        "no log and no span quotes an error",
        "tests/integration/test_service.py",
    ),
    Fault(
        "dpfewshot/planning/population.py",
        "count = len(units(records))",
        "count = len(list(records))",
        "the command line's delta follows from what is declared public",
        "tests/integration/test_default_delta.py",
    ),
)

FAULTS = (*LOOP_AND_PARTS, *SAMPLING_AND_NOISE, *ACCOUNTING_AND_LEDGER, *ENDS)
