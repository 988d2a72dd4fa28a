"""Settings of bench/utility.py beside the package's: a stand-in for fresh draws, public examples, and a store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from dpfewshot.demonstrations import Demonstrations
from dpfewshot.evaluation import Condition, Request, Synthetic
from dpfewshot.generation.experiments import unaccounted
from dpfewshot.generation.request import GenerationRequest
from dpfewshot.generation.set_up import SetUp


@dataclass(frozen=True)
class FreshNoise:
    """A paper's mechanism with the noise of a fresh draw for each token, on one draw: what stands in for it.

    A fresh draw for each token, as published, takes 12 to 25 times the tokens (docs/results/mechanisms.md), for which two
    cores have no time. The noise of such a plan is put on vectors of one draw for all tokens. No guarantee holds for
    that, and none is stated; that it has the utility of the paper's setting is not tested.
    """

    synthetic: Synthetic

    @property
    def name(self) -> str:
        """As results carry it."""
        return self.synthetic.name

    def demonstrations(self, request: Request) -> Demonstrations:
        """As many as were asked for, without a guarantee."""
        every_token = replace(self.synthetic, resample_every=1)
        if request.epsilon is None:
            return self.synthetic.demonstrations(request)
        generation = unaccounted(_on_one_draw(every_token.synthesizer(request).set_up))
        return request.in_order(
            [
                generation.release(GenerationRequest(label, self.synthetic.max_tokens))
                for _ in range(request.shots_per_label)
                for label in sorted(set(request.labels))
            ]
        )


def _on_one_draw(set_up: SetUp) -> SetUp:
    """The same noise for every token, on one draw of records for all."""
    plan = set_up.plan
    tokens = plan.settings.max_tokens
    parts = [
        replace(part, draws=replace(part.draws, steps=part.steps // tokens, tokens_per_draw=tokens))
        for part in plan.strata
    ]
    settings = replace(plan.settings, resample_every=tokens)
    return replace(set_up, plan=replace(plan, strata=tuple(parts), settings=settings), certified=False)


@dataclass(frozen=True)
class WithExamples:
    """A setting whose instruction ends with public examples of what is asked for.

    A small model does not do what Tang's instruction says, to put the director into the sentence, and a demonstration
    without it teaches nothing. Two made-up examples show it: public text, which costs nothing.
    """

    setting: Condition  # not "condition": stored descriptions hold the name
    examples: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """As results carry it."""
        return f"{self.setting.name}, public examples"

    def demonstrations(self, request: Request) -> Demonstrations:
        """As many as were asked for."""
        task = request.task
        shown = "\n\n".join(
            f"{task.label_field}: {label}\n{task.text_field}: {text}" for label, text in self.examples
        )
        told = replace(task, instruction=f"{task.preamble()}{shown}")
        return self.setting.demonstrations(replace(request, task=told))


@dataclass(frozen=True)
class Stored:
    """A setting whose demonstrations are kept in a folder, and taken from there if they are there."""

    setting: Condition  # stored too
    folder: Path = field(repr=False)

    @property
    def name(self) -> str:
        """As results carry it."""
        return self.setting.name

    def demonstrations(self, request: Request) -> Demonstrations:
        """As many as were asked for."""
        parts = (request.task.name, self.name, request.epsilon, len(request.labels), request.repetition)
        path = self.folder / ("_".join(str(part) for part in parts) + ".jsonl")
        if not path.exists():
            self.setting.demonstrations(request).to_jsonl(path)
        made = Demonstrations.from_jsonl(path)
        # Of one plan: each line states what its label's part reserved, and parts are disjoint.
        spends = [one.spent for one in made if one.spent is not None]
        whole = max(spends, key=lambda spend: spend.epsilon) if made.private and spends else None
        return Demonstrations(made, plan_spend=whole)
