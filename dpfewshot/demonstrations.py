"""Collections of released demonstrations, their lines, and what other tools read of them."""

from __future__ import annotations

import functools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, overload

from dpfewshot.account.amounts import DELTA_SCALE, EPSILON_SCALE, LARGEST, NOTHING, Amount
from dpfewshot.certificates import Certificate, line_hash
from dpfewshot.errors import InvalidRecords, InvalidTask, needs_extra
from dpfewshot.prompts.few_shot import Text, labelling_instruction, prompt_format
from dpfewshot.runtime.files import once_each, read_text, write_whole
from dpfewshot.tasks import Task
from dpfewshot.tasks.layout import TextLayout, on_one_line
from dpfewshot.values import (
    Demonstration,
    PrivacySpend,
    believed,
    counted,
    delta_text,
    epsilon_text,
    percent_text,
    unit_noun,
)

if TYPE_CHECKING:
    import datasets
    import pandas as pd

COLUMNS = ("text", "label", "epsilon", "delta", "relation", "certified", "mechanism", "tokens", "finished")
"""The keys of a line, in order; `Demonstration.as_line` writes them, and "fields" if a text has several."""

CERTIFICATE: Final = "certificate"
"""A further key of lines that have one: `Certificate.as_dict`."""

_NO_COST: Final = PrivacySpend(0.0, 0.0)

_DATA_FILE: Final = "demonstrations.jsonl"
_SIZES: Final = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M"}
"""The hub's names of sizes below these."""

_OPENS_A_TEMPLATE = re.compile(r"\{(?=[{%#])")


@dataclass(frozen=True)
class Demonstrations(Sequence[Demonstration]):
    """An immutable sequence of released demonstrations."""

    items: tuple[Demonstration, ...]

    def __init__(self, items: Iterable[Demonstration] = ()) -> None:
        object.__setattr__(self, "items", tuple(items))

    @overload
    def __getitem__(self, index: int) -> Demonstration: ...
    @overload
    def __getitem__(self, index: slice) -> Demonstrations: ...
    def __getitem__(self, index: int | slice) -> Demonstration | Demonstrations:
        """One demonstration, or a slice."""
        return Demonstrations(self.items[index]) if isinstance(index, slice) else self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.items), self.statement])

    @property
    def certified(self) -> bool:
        """Whether every demonstration is private."""
        return all(one.certified for one in self.items)

    @property
    def relation(self) -> str | None:
        """The neighbouring relation of all of them; None if they have several."""
        relations = {one.relation for one in self.items}
        return relations.pop() if len(relations) == 1 else None

    @property
    def units(self) -> frozenset[str | None]:
        """The unit columns of those that cost anything; None stands for each record alone."""
        return frozenset(one.unit for one in self.items if one.spent != _NO_COST)

    @property
    def spent(self) -> PrivacySpend | None:
        """An upper bound on the (ε, δ) of all of them together.

        It is the sum of what their runs reserved: once for each run that certificates name, and once for each
        demonstration without a certificate. The ledger says what a data set has spent in all. None if a
        demonstration is not private, or if relations or units differ: an ε of customers and one of records
        cannot be added.
        """
        if not self.certified or (self.items and self.relation is None) or len(self.units) > 1:
            return None
        runs: dict[object, Amount] = {}
        for number, one in enumerate(self.items):
            if one.spent is not None:
                run = (one.certificate and one.certificate.run) or number
                runs[run] = runs.get(run, NOTHING).at_least(Amount.of_cost(one.spent))
        return functools.reduce(Amount.plus, runs.values(), NOTHING).as_spend()

    @property
    def statement(self) -> str:
        """The guarantee of all of them together, in one line."""
        spent = self.spent
        if spent is None:
            return f"{counted(len(self), 'demonstration')}, no guarantee for all of them together"
        return (
            f"{counted(len(self), 'demonstration')}, together at most epsilon={epsilon_text(spent.epsilon)} "
            f"at delta={delta_text(spent.delta)}, neighbours {self.relation or 'none'}"
        )

    def to_lines(self) -> list[dict[str, object]]:
        """One mapping for each, as the command line writes it."""
        return [one.as_line() for one in self.items]

    def to_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON line for each. An existing file is replaced whole, or unchanged after an OSError."""
        write_whole(path, "".join(json_line(one) for one in self.items))

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `to_jsonl`, or `dpfewshot generate --output` wrote.

        Raises:
            InvalidRecords: the file cannot be read or has none, or a line, which is named, is none.
        """
        if found := cls(one for _, one in numbered_lines(path)):
            return found
        raise InvalidRecords(f"{path}: has no demonstrations")  # a prompt without any would be made of it

    @classmethod
    def from_lines(cls, lines: Iterable[object]) -> Self:
        """Read what `to_lines` gave, such as a service's answer: mappings, or each as JSON.

        Raises:
            InvalidRecords: one of them, which is named by its place, is not a demonstration.
        """
        return cls(_demonstration(line, f"line {number}") for number, line in enumerate(lines, start=1))

    def to_messages(self, task: Task, *, instruction: str | None = None) -> list[dict[str, str]]:
        """Messages in OpenAI's format: the instruction, then each text with its label as the answer.

        Add the text to label as the last user message.

        Args:
            task: its field names and labels make up the instruction; a built-in task has its paper's.
            instruction: for the system message instead; public.

        Raises:
            InvalidTask: a demonstration has an unknown label.
        """
        if task.labels is not None and not {one.label for one in self.items} <= set(task.labels):
            raise InvalidTask(f"a demonstration has another label than the task's: {', '.join(task.labels)}")
        told = instruction or prompt_format(task).instruction or labelling_instruction(task)
        messages = [{"role": "system", "content": told}]
        for one in self.items:
            messages.append({"role": "user", "content": one.text})
            messages.append({"role": "assistant", "content": one.label})
        return messages

    def to_anthropic(self, task: Task, *, instruction: str | None = None) -> dict[str, object]:
        """The `system` and `messages` of Anthropic's messages API; otherwise as `to_messages`."""
        system, *messages = self.to_messages(task, instruction=instruction)
        return {"system": system["content"], "messages": messages}

    def to_dspy(self, *, text: str = "text", label: str = "label") -> list[dict[str, str]]:
        """The fields of a `dspy.Example` for each, which are also the demos of a saved DSPy program.

        `text` and `label` are the names of the signature's input and output fields.
        """
        return [{text: one.text, label: one.label} for one in self.items]

    def to_langchain(self, task: Task, *, instruction: str | None = None) -> dict[str, object]:
        """The arguments of LangChain's `FewShotPromptTemplate`, whose variable is `text`.

        It formats the prompt of `to_prompt`. If a text has several fields, pass the value of the first one,
        and the others behind their names, as the examples have them.
        `to_messages` gives what LangChain's chat models take. LangChain formats each example, joins them, and
        formats the whole once more, so braces are doubled once in texts and twice in an example's template.

        Args:
            task: its field names precede texts and labels; a built-in task has its paper's.
            instruction: replaces the one made from the task; public.

        Raises:
            InvalidTask: a demonstration has an unknown label, or other fields than the task.
        """
        words = prompt_format(task)
        opening, ending = _escaped(words.text_opening), _escaped(words.label_opening)
        return {
            "prefix": _escaped(instruction or words.instruction),
            "examples": [
                {"text": _escaped(text), "label": _escaped(word)}
                for text, word in map(words.pair, self.items)
            ],
            "example_prompt": {
                "input_variables": ["text", "label"],
                "template": f"{_escaped(opening)} {{text}}{_escaped(ending)} {{label}}",
            },
            "suffix": f"{opening} {{text}}{ending}",
            "example_separator": "\n\n",
            "input_variables": ["text"],
        }

    def to_promptfoo(self) -> list[dict[str, object]]:
        """Promptfoo's test cases: the variable `text`, and the label as the whole expected answer.

        What promptfoo would read as a template or a file's name gets a space: "{{" becomes "{ {". Its own
        ways to escape do not hold for variables (promptfoo's issue 10434).
        """
        return [
            {
                "vars": {"text": _inert(one.text)},
                "assert": [{"type": "equals", "value": _inert(one.label)}],
                "options": {"transform": "output.trim()"},
                "metadata": {"label": one.label, "certified": one.certified, "mechanism": one.mechanism},
            }
            for one in self.items
        ]

    def to_folder(self, path: str | os.PathLike[str], *, title: str = "Demonstrations") -> None:
        """Write a data set for `datasets.load_dataset` and the Hugging Face hub: the lines, and a data card.

        The card says what the guarantee means, and states ε, δ, neighbours, unit, mechanism and version.

        Args:
            path: a folder, made if it does not exist. Its README.md and demonstrations.jsonl are replaced.
            title: the card's heading; public.

        Raises:
            OSError: a file cannot be written.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.to_jsonl(folder / _DATA_FILE)
        write_whole(folder / "README.md", _data_card(self, title))

    def to_prompt(self, task: Task, text: Text | None = None, *, instruction: str | None = None) -> str:
        """A plain few-shot prompt: the instruction, each text with its label, and the text to label.

        `icl.Classifier` evaluates the same prompt (`icl.prompt_format`).

        Args:
            task, instruction: as in `to_langchain`.
            text: to label, with several fields also their values by name; without it, the prompt ends after
                the demonstrations.

        Raises:
            InvalidTask: a demonstration has an unknown label, or other fields than the task.
            InvalidRecords: the text is no string, or lacks a field.
        """
        words = prompt_format(task)
        return replace(words, instruction=instruction or words.instruction).prompt(self.items, text)

    def to_dataset(self) -> datasets.Dataset:
        """A `datasets.Dataset` with the columns of a line; `MissingExtra` without datasets."""
        with needs_extra("to_dataset()", "datasets"):
            import datasets
        return datasets.Dataset.from_dict(self._columns())

    def to_pandas(self) -> pd.DataFrame:
        """A `pandas.DataFrame` with the columns of a line; `MissingExtra` without pandas."""
        with needs_extra("to_pandas()", "pandas"):
            import pandas as pd
        return pd.DataFrame(self._columns())

    def _columns(self) -> dict[str, list[object]]:
        lines = self.to_lines()
        names = [*COLUMNS, "fields"] if any(one.fields for one in self.items) else COLUMNS
        return {name: [line.get(name) for line in lines] for name in names}


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _inert(text: str) -> str:
    broken = _OPENS_A_TEMPLATE.sub("{ ", text)
    return f" {broken}" if broken.startswith("file://") else broken


def json_line(demonstration: Demonstration) -> str:
    """The output line of a demonstration, with a line end."""
    return json.dumps(demonstration.as_line(), ensure_ascii=False) + "\n"


def from_line(line: object) -> Demonstration:
    """The demonstration of an output line, or ValueError."""
    if not isinstance(line, Mapping) or set(line) - {CERTIFICATE, "fields"} != set(COLUMNS):
        raise ValueError("the keys are not those of a demonstration")
    fields = line.get("fields", {})
    if "fields" in line and not fields:
        raise ValueError("a line without fields has no such key")  # no hash would cover it
    strings = [line[name] for name in ("text", "label", "relation", "mechanism")]
    strings += fields.values() if isinstance(fields, dict) else [None]
    limits = {"epsilon": LARGEST / EPSILON_SCALE, "delta": LARGEST / DELTA_SCALE}
    spends = all(type(line[key]) in {int, float} and 0 <= line[key] <= limit for key, limit in limits.items())
    whole = (
        type(line["tokens"]) is int
        and 0 <= line["tokens"] < 1 << 63
        and all(isinstance(line[name], bool) for name in ("certified", "finished"))
    )
    if not (all(isinstance(each, str) for each in strings) and whole and spends == line["certified"]):
        raise ValueError("a value has the wrong type")
    if fields and TextLayout(tuple(fields)).values(line["text"]) != tuple(map(on_one_line, fields.values())):
        raise ValueError("the fields are not those of the text")
    same = ("text", "label", "certified", "relation", "mechanism", "finished")
    return Demonstration(
        **{name: line[name] for name in same},
        token_count=line["tokens"],
        spent=PrivacySpend(float(line["epsilon"]), float(line["delta"])) if spends else None,
        certificate=Certificate.from_dict(line[CERTIFICATE]) if CERTIFICATE in line else None,
        fields=fields,
    )


def line_hashes(demonstrations: Iterable[Demonstration]) -> Counter[str]:
    """The hashes of their lines, as a ledger records them, and how often each is there."""
    return Counter(line_hash(one.as_line()) for one in demonstrations)


def numbered_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, Demonstration]]:
    """The demonstrations of a file, each with the number of its line. See `Demonstrations.from_jsonl`."""
    lines = read_text(path, InvalidRecords, if_missing="; `dpfewshot generate` writes it").split("\n")
    for number, text in enumerate(lines, start=1):
        if text.strip():
            yield number, _demonstration(text, f"{path}: line {number}:")


def _demonstration(line: object, where: str) -> Demonstration:
    try:
        if isinstance(line, str):
            line = json.loads(line, object_pairs_hook=functools.partial(once_each, error=ValueError))
        json.dumps(line, ensure_ascii=False).encode()  # fails for a lone surrogate, hashed as "?"
        return from_line(line)
    except (TypeError, ValueError, RecursionError):
        lacking = [name for name in COLUMNS if name not in line] if isinstance(line, Mapping) else []
        why = f": it has no {', '.join(lacking)}. Remove the line, or restore it" if lacking else ""
        raise InvalidRecords(f"{where} is not a demonstration{why}") from None


# ---- the data card ----------------------------------------------------------------------------------------

_CARD: Final = """\
---
pretty_name: {name}
task_categories: [text-classification]
tags: [synthetic, few-shot, differential-privacy]
size_categories: ['{size}']
configs:
- config_name: default
  data_files: {file}
---

# {title}

{count}, written by a language model.

## Guarantee

{guarantee}

| demonstrations | ε | δ | neighbours | unit | mechanism | version | written by | account |
|---|---|---|---|---|---|---|---|---|
{rows}

*ε* and *δ* are what the runs behind a row reserved; rows may share a run. *unit* is the column whose
values are protected: all records with one value count as one. *written by* begins the hash of a model,
or is a name that a server claims. Each line's `certificate` has the hashes of its plan, tokenizer and
prompt: `dpfewshot verify` compares it with the ledger's account.
"""

_NO_GUARANTEE: Final = """\
**No guarantee holds for all of them together.** Some are not private, or hold for different
neighbours or units."""


def _data_card(ones: Demonstrations, title: str) -> str:
    """A README.md in Markdown with the header, in YAML, that `datasets` and the Hugging Face hub read."""
    spent, guarantee = ones.spent, _NO_GUARANTEE
    if spent is not None:
        noun = unit_noun(next(iter(ones.units), None)) or "unit"
        guarantee = (
            f"Somebody who was 50 % sure that a given {_cell(noun)} was used for these texts becomes at most "
            f"{percent_text(believed(0.5, spent.epsilon))} sure by them, apart from an allowance of "
            f"δ. Together they are (ε, δ)-differentially private with ε ≤ {epsilon_text(spent.epsilon)} "
            f"and δ = {delta_text(spent.delta)}, for neighbouring data sets under the relation "
            f"{ones.relation or 'none'}. Any use of them costs no further privacy. What else was "
            "released from the same records adds to this."
        )
    alike: dict[tuple[str, ...], list[Demonstration]] = {}
    for one in ones:
        alike.setdefault(_facts(one), []).append(one)
    return _CARD.format(
        name=json.dumps(title),  # a JSON string is one of YAML too
        size=next((name for limit, name in _SIZES.items() if len(ones) < limit), "1M<n<10M"),
        file=_DATA_FILE,
        title=_cell(title),
        count=counted(len(ones), "synthetic few-shot demonstration"),
        guarantee=guarantee,
        rows="\n".join(
            f"| {len(some)} | {' | '.join(map(_cell, (*_costs(Demonstrations(some).spent), *facts)))} |"
            for facts, some in alike.items()
        ),
    )


def _facts(one: Demonstration) -> tuple[str, ...]:
    """What those of a row have in common."""
    made = one.certificate or Certificate("", "unknown", "unknown")
    writer, account = made.model or "unknown", made.dataset or "none"
    return one.relation, made.unit or "each record", one.mechanism, made.version, writer, account


def _costs(spent: PrivacySpend | None) -> tuple[str, str]:
    if spent is None:
        return "no guarantee", "no guarantee"
    return epsilon_text(spent.epsilon), delta_text(spent.delta)


def _cell(text: str) -> str:
    """A text that cannot end its cell or line."""
    return " ".join(text.split()).replace("|", "\\|")
