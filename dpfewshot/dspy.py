"""An optimiser for DSPy programs whose training set is private.

DSPy's own optimisers put training examples into prompts. This one writes texts from them under (ε, δ),
searches privately for those that help, and puts only these into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from dpfewshot.account.account import Account
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import DPFewShotError, InvalidPlan
from dpfewshot.generation.runner import OnDemonstration
from dpfewshot.planning.settings import Settings
from dpfewshot.records import as_records
from dpfewshot.releases.candidates import Choice
from dpfewshot.releases.choosing import Variations, search, warn_caller
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.synthesizer import Synthesizer
from dpfewshot.tasks import Task
from dpfewshot.values import PrivacyBudget, PrivacySpend


class Module(Protocol):
    """What is used of a `dspy.Module`."""

    def reset_copy(self) -> Self:
        """Return a copy without demos."""
        ...

    def predictors(self) -> list[Any]:
        """Return its `dspy.Predict` objects."""
        ...


Program = TypeVar("Program", bound=Module)


@dataclass(frozen=True, kw_only=True)
class PrivateFewShot:
    """Compiles DSPy programs as `dspy.LabeledFewShot` does, with certified demonstrations for its examples.

    The texts and the search read different units, so that both together cost the ε of one of them
    (docs/proofs/composition.md). What the program is asked later goes to any model: it shows released texts.

    Args:
        task: what the examples are; its labels are theirs.
        backend: the trusted model that reads the examples. It writes the texts, and labels with them.
        budget: (ε, δ) of all that one `compile` releases.
        text: the signature's input field, and the examples', with the text.
        label: the signature's output field, and the examples', with the label.
        unit: the examples' field that says whom one belongs to; None where each is a unit.
        max_tokens: as in `Synthesizer`.
        shots_per_label: as in `Synthesizer`; with several texts a label there is more to search.
        rounds: as in `dpf.search`.
        scored_units: as in `dpf.search`; fewer take less time, and choose less well.
        account: as in `Synthesizer`; None makes one of this budget for each `compile`.
        settings: as in `Synthesizer`, with a holdout, whose units search.
        on_demonstration: as in `Synthesizer.generate_all`: to keep what is paid for if an interrupt ends the
            search.
        on_choice: is told how well the backend labels with what is shown, beside without any.
    """

    task: Task
    backend: LogprobBackend
    budget: PrivacyBudget
    text: str = "text"
    label: str = "label"
    unit: str | None = None
    max_tokens: int = 40
    shots_per_label: int = 1
    rounds: int = 2
    scored_units: int = 1000
    account: Account | None = field(default=None, repr=False)
    settings: Settings = Settings(holdout=0.2)  # noqa: RUF009 - frozen
    on_demonstration: OnDemonstration | None = None
    on_choice: Callable[[Choice], object] | None = None

    @redacts_errors(DPFewShotError, "the optimiser")
    def compile(self, student: Program, *, trainset: Iterable[Any]) -> Program:
        """Return a copy of a program that shows the demonstrations that were found best, if any are.

        Args:
            student: each of its predictors with both fields in its signature gets them.
            trainset: private `dspy.Example` objects, or mappings.

        Raises:
            InvalidPlan: no predictor has both fields, or the settings have no holdout. Nothing is spent.
            DPFewShotError: as `Synthesizer` and its `generate_all`. A search or an `on_choice` that fails
                only causes a warning: what was written is paid for, and shown as it is.
        """
        program = student.reset_copy()
        fitting = [one for one in program.predictors() if {self.text, self.label} <= {*one.signature.fields}]
        if not fitting:
            raise InvalidPlan(f"no predictor of the program has the fields {self.text!r} and {self.label!r}")
        if not self.settings.holdout:
            raise InvalidPlan("settings need a holdout, such as 0.2: its units search")
        demonstrations = self._released(trainset)
        for predictor in fitting:
            predictor.demos = demonstrations.to_dspy(text=self.text, label=self.label)
        return program

    def _released(self, trainset: Iterable[Any]) -> Demonstrations:
        columns = {"text": self.text, "label": self.label} | ({"unit": self.unit} if self.unit else {})
        rows = [{name: one[name] for name in columns.values() if name in one} for one in trainset]
        records, account = as_records(rows, **columns), self.account or Account.in_memory(self.budget)
        with Synthesizer(
            self.task,
            records,
            self.backend,
            budget=self.budget,
            account=account,
            max_tokens=self.max_tokens,
            shots_per_label=self.shots_per_label,
            settings=self.settings,
        ) as synthesizer:
            choosing = synthesizer.set_up.partition.choosing, PrivacySpend(self.budget.epsilon, 0.0)
            account.check([*synthesizer.set_up.account_costs(), choosing])  # both, before either is paid
            written = synthesizer.generate_all(on_demonstration=self.on_demonstration)
        try:
            choice = search(
                self.task,
                records,
                self.backend,
                proposer=Variations(written),
                rounds=self.rounds,
                scored_units=self.scored_units,
                budget=self.budget,
                account=account,
                holdout=self.settings.holdout,
                record_token_cap=self.settings.record_token_cap,
            )
        except DPFewShotError as error:
            warn_caller(f"the search failed, so the texts are shown as written: {error}")
            return written
        try:
            if self.on_choice is not None:
                self.on_choice(choice)
        except Exception as error:  # noqa: BLE001 - what was chosen is paid for
            warn_caller(f"on_choice failed with {type(error).__name__}")
        return choice.demonstrations
