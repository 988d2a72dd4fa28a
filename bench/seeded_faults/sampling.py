"""Faults of sampling, of noise and of labels."""

from bench.seeded_faults.fault import Fault

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
        "dpfewshot/releases/labels.py",
        "return sorted(kept, key=lambda label: (-noisy[label], label))[: self.count]",
        "return sorted(kept, key=lambda label: (-votes[label], label))[: self.count]",
        "the order of released labels is that of their noisy votes",
        "tests/unit/test_labels.py tests/property/test_labels.py",
    ),
    Fault(
        "dpfewshot/releases/labels.py",
        "    return 1 + high\n",
        "    return high\n",
        "a label of one unit comes out with probability delta at most",
        "tests/unit/test_labels.py tests/statistical/test_labels.py",
    ),
)
