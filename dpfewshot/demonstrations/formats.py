"""Demonstrations as other tools read them: plain lists, mappings and Markdown, without those tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from dpfewshot.certificates import Certificate
from dpfewshot.prompts.few_shot import labelling_instruction, prompt_format
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacySpend, amount_text, counted

DATA_FILE = "demonstrations.jsonl"
"""The file beside the card."""

_SMALL = 1000

_OPENS_A_TEMPLATE = re.compile(r"\{(?=[{%#])")
_FILE = "file://"


def turns(items: Iterable[Demonstration]) -> list[dict[str, str]]:
    """Each text as the user's message, and its label as the assistant's."""
    return [
        message
        for one in items
        for message in (
            {"role": "user", "content": one.text},
            {"role": "assistant", "content": one.label},
        )
    ]


def system_message(task: Task, instruction: str | None) -> str:
    """What a chat model is told first: the instruction given, the paper's, or one made from the task."""
    return instruction or prompt_format(task).instruction or labelling_instruction(task)


def few_shot_template(
    items: Iterable[Demonstration], task: Task, instruction: str | None
) -> dict[str, object]:
    """The arguments of LangChain's `FewShotPromptTemplate`, which formats the same prompt as `to_prompt`.

    LangChain formats each example, joins them, and formats the whole once more. So braces are doubled once
    in texts and twice in the template of an example.
    """
    words = prompt_format(task)
    opening, ending = _escaped(words.text_opening), _escaped(words.label_opening)
    return {
        "prefix": _escaped(instruction or words.instruction),
        "examples": [
            {"text": _escaped(text), "label": _escaped(word)} for text, word in map(words.pair, items)
        ],
        "example_prompt": {
            "input_variables": ["text", "label"],
            "template": f"{_escaped(opening)} {{text}}{_escaped(ending)} {{label}}",
        },
        "suffix": f"{opening} {{text}}{ending}",
        "example_separator": "\n\n",
        "input_variables": ["text"],
    }


def promptfoo_cases(items: Iterable[Demonstration]) -> list[dict[str, object]]:
    """Promptfoo's test cases: the text as a variable, and the label as the answer that it expects.

    promptfoo renders variables as templates, and reads the files that they name. Its documented ways to
    escape do not hold for variables (promptfoo's issue 10434), so a space separates what opens a template,
    and precedes what names a file.
    """
    return [
        {
            "vars": {"text": _inert(one.text)},
            "assert": [{"type": "equals", "value": _inert(one.label)}],
            "options": {"transform": "output.trim()"},
            "metadata": {"label": one.label, "certified": one.certified, "mechanism": one.mechanism},
        }
        for one in items
    ]


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _inert(text: str) -> str:
    broken = _OPENS_A_TEMPLATE.sub("{ ", text)
    return f" {broken}" if broken.startswith(_FILE) else broken


def data_card(
    items: Sequence[Demonstration], spent: PrivacySpend | None, relation: str | None, title: str
) -> str:
    """A README.md in Markdown with the header that `datasets` and the Hugging Face hub read.

    Args:
        items: that it describes.
        spent: (ε, δ) of all of them together; None if no guarantee holds.
        relation: the neighbours of all of them.
        title: its heading; public.
    """
    return "\n".join([*_header(len(items), title), "", *_body(items, spent, relation, title), ""])


def _header(count: int, title: str) -> Iterator[str]:
    """YAML; a JSON string is one of YAML too."""
    yield "---"
    yield f"pretty_name: {json.dumps(title)}"
    yield "task_categories: [text-classification]"
    yield "tags: [synthetic, few-shot, differential-privacy]"
    yield f"size_categories: ['{'n<1K' if count < _SMALL else '1K<n<10K'}']"
    yield "configs:"
    yield "- config_name: default"
    yield f"  data_files: {DATA_FILE}"
    yield "---"


def _body(
    items: Sequence[Demonstration], spent: PrivacySpend | None, relation: str | None, title: str
) -> Iterator[str]:
    yield f"# {_cell(title)}"
    yield ""
    yield (
        f"{counted(len(items), 'synthetic few-shot demonstration')}, written by a language model. "
        "No line is a record."
    )
    yield ""
    yield "## Guarantee"
    yield ""
    if spent is None:
        yield "**No guarantee holds for all of them together.** Some are not private, or hold for different"
        yield "neighbours."
        yield ""
    else:
        yield (
            f"Together they are (ε, δ)-differentially private with ε ≤ {amount_text(spent.epsilon)} and "
            f"δ = {amount_text(spent.delta)}, for neighbouring data sets under the relation "
            f"{relation or 'none'}. Any use of them costs no further privacy. What else was "
            "released from the same records adds to this."
        )
        yield ""
    yield "| demonstrations | ε | δ | neighbours | unit | mechanism | version | plan | written by | ledger |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    yield from _rows(items)
    yield ""
    yield "*ε* and *δ* are what the whole plan of these demonstrations reserved. *unit* is the column whose"
    yield "values are protected: all records with one value count as one. *plan* is the SHA-256 of the plan's"
    yield "public facts, which the ledger's entry has too: `dpfewshot verify` compares them. *written by* has"
    yield "the first digits of hashes of the model, its tokenizer and the public prompt; a server claims it."
    yield "*ledger* is the account, and the random identifier of the plan in it."


def _rows(items: Sequence[Demonstration]) -> Iterator[str]:
    counts: dict[tuple[str, ...], int] = {}
    for one in items:
        made, spent = one.certificate, one.spent
        row: tuple[str, ...] = (
            "no guarantee" if spent is None else amount_text(spent.epsilon),
            "no guarantee" if spent is None else amount_text(spent.delta),
            one.relation,
            "unknown" if made is None else made.unit or "each record",
            one.mechanism,
            "unknown" if made is None else made.version,
            "unknown" if made is None else made.plan,
            "unknown" if made is None else _written_by(made),
            "none" if made is None or made.reservation is None else f"{made.dataset}, {made.reservation}",
        )
        counts[row] = counts.get(row, 0) + 1
    for row, count in counts.items():
        yield f"| {count} | {' | '.join(map(_cell, row))} |"


def _written_by(made: Certificate) -> str:
    told = {"model": made.model, "tokenizer": made.tokenizer, "prompt": made.prompt}
    return ", ".join(f"{name} {value or 'unknown'}" for name, value in told.items())


def _cell(text: str) -> str:
    """A text that cannot end its cell or line."""
    return " ".join(text.split()).replace("|", "\\|")
