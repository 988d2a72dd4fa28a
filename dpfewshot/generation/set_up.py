"""A plan and what it is made for. Everything that draws is made here, from the plan alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from types import MappingProxyType

from dpfewshot.account.amounts import EventCost
from dpfewshot.account.draws import ANY_TOKENS
from dpfewshot.account.history import Details
from dpfewshot.account.scopes import Partition
from dpfewshot.backends.chat_writer import TextWriter
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.certificates import WRITER, Provenance
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.generation.histogram_loop import HistogramLoop
from dpfewshot.generation.token_loop import TokenLoop
from dpfewshot.generation.units import Bodies, labels_of, units_by_scope
from dpfewshot.mechanisms import Mechanism, Release
from dpfewshot.mechanisms.gaussian import start_release
from dpfewshot.mechanisms.word_histogram import HistogramRelease
from dpfewshot.planning.plan import GenerationPlan, StratumPlan, draws_at
from dpfewshot.planning.settings import FIXED_SIZE
from dpfewshot.prompts.chat import chat_turns
from dpfewshot.prompts.writer import LabelPrompts, PromptWriter
from dpfewshot.records.units import UnitSequence
from dpfewshot.runtime.forking import cached_property
from dpfewshot.sampling import FixedSizeSampler, PoissonSampler, Sampler, disjoint_parts
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, Record
from dpfewshot.writing.label_check import LabelCheck
from dpfewshot.writing.request import PublicRequest
from dpfewshot.writing.writer import HistogramWriter


@dataclass(frozen=True)
class SetUp:
    """What `Synthesizer` generates from. Read-only: changing it has no effect on a generation.

    The plan must be for these units. A certified set-up has no random source, and a plan that states what it
    draws and costs.

    Attributes:
        mechanism: turns private numbers into tokens; nothing else does.
        units: the private units of each stratum, by its scope, in the plan's order. Those that the plan's
            holdout keeps for choosing never enter a prompt.
        partition: names the account's strata.
        random_source: for tests alone; None is the operating system's generator.
        text_writer: writes texts from a released histogram; None: the backend does.
    """

    task: Task
    backend: LogprobBackend = field(repr=False)
    mechanism: Mechanism
    plan: GenerationPlan
    units: Mapping[str | None, UnitSequence] = field(repr=False)
    certified: bool
    partition: Partition
    random_source: RandomSource | None = field(default=None, repr=False)
    text_writer: TextWriter | None = field(default=None, repr=False)
    _bodies: dict[str | None, list[Bodies]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", MappingProxyType(dict(self.units)))
        strata = self.plan.strata
        served = all(stratum.labels == labels_of(stratum.scope, stratum.labels) for stratum in strata)
        if [stratum.scope for stratum in strata] != list(self.units) or not served:
            raise InvalidPlan("the plan's strata are those of other units")
        if self.mechanism.draws_once and not isinstance(self.release(strata[0]), HistogramRelease):
            raise InvalidPlan(f"draws_once is WordHistogram's alone, and {self.mechanism.name!r} has it")
        if not self.certified:
            return
        if self.random_source is not None:
            raise InvalidPlan("a certified set-up draws from the operating system's random generator alone")
        if not all(self._states(stratum) for stratum in strata):
            raise InvalidPlan("the plan's epsilon is that of other draws, or of other noise")
        if not self._divides_as_paid():
            raise InvalidPlan("the plan's holdout or parts are not those of the account's strata")
        if not all(stratum.pays for stratum in strata):
            raise InvalidPlan("the plan's epsilon is less than its draws cost")

    @cached_property
    def writer(self) -> PromptWriter:
        """Writes the prompts."""
        return PromptWriter(self.task, self.backend, self.plan.settings.record_token_cap)

    @cached_property
    def loop(self) -> TokenLoop:
        """Generates token by token, or text by text from a histogram."""
        if self.mechanism.draws_once:
            writer = HistogramWriter(self.backend, self.task, self.text_writer, self.random_source)
            return HistogramLoop(self.backend, self.task.layout, self.certified, writer=writer)
        return TokenLoop(self.backend, self.task.layout, self.certified)

    @cached_property
    def label_check(self) -> LabelCheck:
        """Tells whether the model itself would give a text its label."""
        return LabelCheck(self.task, self.backend)

    def subjects(self, label: str) -> list[str]:
        """Those that a label's texts take turns with: none where prompts have records, and name them all."""
        return self.task.subjects(label) if self.mechanism.draws_once else []

    def prompts(self, label: str, number: int) -> LabelPrompts:
        """The prompts of a label's text by its number: of its one subject, if texts take turns."""
        return self.writer.for_label(label, number if self.subjects(label) else None)

    def topic(self, label: str, number: int) -> str:
        """What a text writer is told that a label's text by its number is about."""
        subject = self.task.described(label, number)
        return label if subject == label else f"{label}: {subject}"

    def without_records(self, label: str, earlier: Sequence[str], max_tokens: int) -> Demonstration:
        """What `loop` writes of a label if nothing is known of the records: none is read, so ε = 0.

        The model is not asked whether it fits the label, which takes as long again for the first text.

        Raises:
            BackendError: the model failed.
        """
        prompts, topic = self.prompts(label, len(earlier)), self.topic(label, len(earlier))
        request = PublicRequest(prompts=prompts, max_tokens=max_tokens, topic=topic, earlier=earlier)
        tokens = self.loop.without_records(request)
        return self.loop.at_no_cost(label, prompts, tokens, self.plan.relation)

    @cached_property
    def provenance(self) -> Provenance:
        """What reads the records: hashes of the model, its tokenizer and the public prompt."""
        turns = chat_turns(self.backend).fingerprint() if self.task.chat else None
        prompt = json.dumps({"task": self.task.identity(), "chat": turns}, sort_keys=True)
        return Provenance(
            self.backend.model_identity,
            self.backend.tokenizer_identity,
            prompt=f"sha256:{hashlib.sha256(prompt.encode()).hexdigest()}",
        )

    @property
    def written_by(self) -> Provenance:
        """What writes the texts, as lines state it: a text writer by the name that it gives itself."""
        told, writer = self.provenance.short(), self.text_writer
        if writer is None:
            return told
        name = getattr(writer, "model", None) or getattr(writer, "__qualname__", type(writer).__qualname__)
        one_word = re.sub(r"[\s,]+", "_", str(name))  # beside others in what `verify` prints
        return replace(told, model=f"{WRITER}{one_word}")

    def bodies(self, stratum: StratumPlan, part: int) -> Bodies:
        """The units of one disjoint part of a stratum, of those that the plan's holdout leaves. Private."""
        if stratum.scope not in self._bodies:
            settings = self.plan.settings
            units = settings.division.generating(self.units[stratum.scope])
            parts = disjoint_parts(units, settings.disjoint_parts)
            tokens_of = self.writer.text if self.mechanism.draws_once else self.writer.body
            self._bodies[stratum.scope] = [Bodies(each, tokens_of) for each in parts]
        return self._bodies[stratum.scope][part]

    def sampler(self, stratum: StratumPlan) -> Sampler:
        """Draws the units of a stratum and groups them into prompts."""
        settings, prompts = self.plan.settings, stratum.draws.prompts
        records = settings.records_per_prompt
        if settings.sampling == FIXED_SIZE:
            return FixedSizeSampler(prompts, records, self.random_source)
        return PoissonSampler(stratum.sampling_rate, prompts, records, self.random_source)

    def release(self, stratum: StratumPlan) -> Release:
        """The mechanism, started for one demonstration of a stratum with the noise of its plan."""
        return start_release(self.mechanism, stratum.draws, stratum.noise_multiplier, self.random_source)

    def account_cost(self, stratum: StratumPlan) -> EventCost | None:
        """What a disjoint part of a stratum costs, as an account counts it; None if nothing is certified."""
        if not self.certified or stratum.cost is None or stratum.event is None:
            return None
        return EventCost(stratum.cost, stratum.event)

    def account_costs(self) -> list[tuple[str | None, EventCost]]:
        """The scope and the cost of each part of each stratum; none if nothing is certified."""
        priced = [(scope, self.account_cost(stratum)) for scope, stratum in self._scopes()]
        return [(scope, cost) for scope, cost in priced if cost is not None]

    def account_populations(self) -> dict[str | None, int]:
        """The public number of units by the scope of each part of each stratum."""
        return {scope: stratum.population for scope, stratum in self._scopes()}

    def _scopes(self) -> list[tuple[str | None, StratumPlan]]:
        """The scope of each part of each stratum, as the account counts it."""
        return [
            (self.partition.generating(stratum.scope, part), stratum)
            for stratum in self.plan.strata
            for part in range(self.plan.settings.disjoint_parts)
        ]

    def account_details(self, stratum: StratumPlan) -> Details:
        """Public facts of a stratum's plan for the account's history."""
        labels = {"task_labels": json.dumps(self.task.labels), "label_column": self.partition.column}
        holdout = {"holdout": json.dumps(self.partition.holdout)}
        served: str | int = self.plan.settings.tokens_per_draw
        provenance = self.provenance
        if self.mechanism.draws_once:  # prompts may change: each line states the one that wrote it
            served, provenance = ANY_TOKENS, replace(provenance, prompt=None)
        return {
            "mechanism": self.mechanism.name,
            "disjoint_parts": self.plan.settings.disjoint_parts,
            "records_per_prompt": self.plan.settings.records_per_prompt,
            **({} if self.task.labels is None else labels),
            **(holdout if self.partition.holdout else {}),
            "noise_multiplier": stratum.noise_multiplier,
            "sampling_rate": str(stratum.sampling_rate),
            "steps": stratum.steps,
            "tokens_per_step": served,
            **provenance.details(),
        }

    def identity(self) -> dict[str, object]:
        """The public settings that a run has in common with the one that it continues."""
        mechanism: object = self.mechanism
        task, plan, labels = self.task.identity(), self.plan.figures(), self.plan.labels
        # the mark of a model whose backend states no identity: its tokens are continued
        mark = [self.writer.for_label(label).public for label in labels]
        if self.mechanism.draws_once:  # texts cost nothing: a run may go on with more, longer or other ones
            task = {name: task[name] for name in ("name", "labels")}
            for name in ("shots_per_label", "max_tokens", "tokens_per_draw", "prompt_tokens"):
                del plan[name]
            plan["parts"] = [stratum.figures() | {"labels": stratum.scope} for stratum in self.plan.strata]
            names = [stratum.scope or self.task.name for stratum in self.plan.strata]
            mark = [tuple(self.backend.tokenize(f" {name}")) for name in names]
        return {
            "task": task,
            "plan": plan,
            # the repr of a user's own mechanism may contain an address
            "mechanism": repr(mechanism) if is_dataclass(mechanism) else self.mechanism.name,
            "weights": self.backend.weights,
            "mark": mark,
        }

    def over(self, records: Sequence[Record], backend: LogprobBackend, plan: GenerationPlan) -> SetUp:
        """The same set-up for other records, another model and another plan. It is not certified.

        The model has tokens of its own, so what the task asks of the user's is left out: schema, chat
        template, example and repetition are functions of released tokens and public words, and change no
        draw.
        """
        units = units_by_scope(self.task, records, plan.labels)
        task = replace(self.task, schema="", chat=False, example="", no_repeat_ngram_size=0)
        return replace(
            self, task=task, backend=backend, plan=plan, units=units, certified=False, text_writer=None
        )

    def _divides_as_paid(self) -> bool:
        """Whether the plan holds out, and divides into parts, what the account's strata say."""
        settings, rule = self.plan.settings, self.partition.holdout
        fraction = settings.division.fraction
        holds_out = str(fraction) in rule if fraction else not rule
        return holds_out and len(self.partition.parts) == settings.disjoint_parts

    def _states(self, stratum: StratumPlan) -> bool:
        """Whether the stratum's event describes what the sampler, the mechanism and the loop do."""
        settings = self.plan.settings.within(stratum.population)
        drawn = self.mechanism.planned(draws_at(settings, stratum, stratum.sampling_rate))
        counted = drawn.fixed_size is None or stratum.population == len(self.units[stratum.scope])
        return (
            stratum.noise_multiplier > 0
            and counted
            and stratum.draws == replace(drawn, steps=stratum.steps)
            and stratum.event == self.mechanism.event(stratum.draws, stratum.noise_multiplier)
        )
