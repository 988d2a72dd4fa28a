"""Demonstrations as other tools read them: plain lists and mappings, so that none of the tools is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dpfewshot.prompts.few_shot import labelling_instruction, prompt_format
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration

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
