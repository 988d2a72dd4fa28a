"""Faults of choices of prompts."""

from bench.seeded_faults.fault import Fault

CHOICES = (
    Fault(
        "dpfewshot/releases/scores.py",
        "totals // (np.array(sizes, dtype=np.int64) * steps.shape[1])",
        "totals // steps.shape[1]",
        "a unit of many records has a score of at most 1",
        "tests/property/test_choice.py",
    ),
    Fault(
        "dpfewshot/releases/scores.py",
        "np.where(answered & (cell == number), weights[:, None], 0)",
        "np.where(cell == number, weights[:, None], 0)",
        "a record without an answer is in no cell",
        "tests/property/test_choice.py",
    ),
    Fault(
        "dpfewshot/releases/scores.py",
        "outcomes.likelihood.clip(0, 1) * GRID",
        "outcomes.likelihood * GRID * 2",
        "a record's score is at most 1",
        "tests/property/test_choice.py",
    ),
    Fault(
        "dpfewshot/releases/selection.py",
        "int(_core.permute_and_flip(scores, *(self.rate / GRID).as_integer_ratio(), random_source))",
        "int(_core.permute_and_flip(scores, *(self.rate * 11 / 10 / GRID).as_integer_ratio(), random_source))",
        "a choice is made at the rate that was charged",
        "tests/statistical/test_choice.py",
    ),
    Fault(
        "dpfewshot/releases/selection.py",
        "rate = (self.rate / GRID).as_integer_ratio()",
        "rate = (self.rate * 11 / 10 / GRID).as_integer_ratio()",
        "accuracies have the noise that was charged",
        "tests/statistical/test_choice.py",
    ),
    Fault(
        "dpfewshot/releases/selection.py",
        "return most * (high * (1 - q) + q * one) <= low * one",
        "return most * (high * (1 - q) + q * one) <= low * one * 2",
        "a sampled release costs no more than was asked for",
        "tests/property/test_choice.py",
    ),
    Fault(
        "dpfewshot/releases/selection.py",
        "PoissonRandomizedResponse(rounded_up(sampling_rate), largest, 1)",
        "PoissonRandomizedResponse(rounded_up(sampling_rate), largest / 2, 1)",
        "an account of divergences counts all of a choice",
        "tests/integration/test_ledger_renyi.py",
    ),
    Fault(
        "dpfewshot/releases/choosing.py",
        "for index in (drawn == part).nonzero()[0]]",
        "for index in (drawn >= 0).nonzero()[0]]",
        "a unit that chooses measures nothing",
        "tests/unit/test_choice.py",
    ),
    Fault(
        "dpfewshot/releases/scoring.py",
        "asked, private=True)",
        "asked, private=False)",
        "a private prompt is evaluated by itself",
        "tests/unit/test_scoring.py",
    ),
    Fault(
        "dpfewshot/releases/scoring.py",
        "return [*whole[: self._cap], *self._ending]",
        "return whole",
        "a record's text is cut by a cap of its own",
        "tests/unit/test_scoring.py",
    ),
    Fault(
        "dpfewshot/releases/scoring.py",
        "    rows[~answered] = 0.0\n",
        "",
        "a record without an answer counts for nothing",
        "tests/unit/test_scoring.py",
    ),
)
