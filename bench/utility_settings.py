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
    """A stand-in for fresh draws: a paper's mechanism with their noise, on one draw.

    A fresh draw for each token, as published, takes 12 to 25 times the tokens (docs/results/mechanisms.md), too many for
    two cores. The noise of such a plan is added to vectors of one draw for all tokens. No guarantee holds, and none is
    stated; nothing tests that its utility is that of the paper's setting.
    """

    synthetic: Synthetic

    @property
    def name(self) -> str:
        """The name in results."""
        return self.synthetic.name

    def demonstrations(self, request: Request) -> Demonstrations:
        """The requested demonstrations, without a guarantee."""
        every_token = replace(self.synthetic, tokens_per_draw=1)
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
    settings = replace(plan.settings, tokens_per_draw=tokens)
    return replace(set_up, plan=replace(plan, strata=tuple(parts), settings=settings), certified=False)


@dataclass(frozen=True)
class WithExamples:
    """A setting whose instruction ends with public examples of its task.

    Tang's instruction asks for the director in the sentence. A small model ignores that, and a demonstration without it
    teaches nothing. Two invented examples show the form: public text, which costs nothing.
    """

    setting: Condition  # not "condition": stored descriptions hold the name
    examples: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The name in results."""
        return f"{self.setting.name}, public examples"

    def demonstrations(self, request: Request) -> Demonstrations:
        """The requested demonstrations."""
        task = request.task
        shown = "\n\n".join(
            f"{task.label_field}: {label}\n{task.text_field}: {text}" for label, text in self.examples
        )
        told = replace(task, instruction=f"{task.preamble()}{shown}")
        return self.setting.demonstrations(replace(request, task=told))


@dataclass(frozen=True)
class Stored:
    """A setting whose demonstrations are cached in a folder."""

    setting: Condition  # stored too
    folder: Path = field(repr=False)

    @property
    def name(self) -> str:
        """The name in results."""
        return self.setting.name

    def demonstrations(self, request: Request) -> Demonstrations:
        """The requested demonstrations."""
        parts = (request.task.name, self.name, request.epsilon, len(request.labels), request.repetition)
        path = self.folder / ("_".join(str(part) for part in parts) + ".jsonl")
        if not path.exists():
            self.setting.demonstrations(request).to_jsonl(path)
        made = Demonstrations.from_jsonl(path)
        # Of one plan: each line states what its label's stratum reserved, and strata are disjoint.
        spends = [one.spent for one in made if one.spent is not None]
        whole = max(spends, key=lambda spend: spend.epsilon) if made.certified and spends else None
        return Demonstrations(made, plan_spend=whole)
