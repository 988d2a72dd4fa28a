"""Sends a question with demonstrations to any model behind OpenAI's protocol.

    pip install openai
    OPENAI_API_KEY=... python examples/openai_client.py demos.jsonl trec gpt-4o-mini "Who wrote Middlemarch ?"

The demonstrations are differentially private and may leave the house. The question is sent as it is.
"""

from __future__ import annotations

import sys
from typing import Any

from openai import OpenAI

import dpfewshot as dpf


def label_of(
    text: str, demonstrations: dpf.Demonstrations, task: dpf.Task, *, client: OpenAI, model: str
) -> str:
    """The model's label of a text, given the demonstrations."""
    messages: list[Any] = [*demonstrations.to_messages(task), {"role": "user", "content": text}]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0)
    return (answer.choices[0].message.content or "").strip()


def main(path: str, task: str, model: str, text: str) -> None:
    """Prints the label. The client reads OPENAI_API_KEY and OPENAI_BASE_URL."""
    demonstrations = dpf.Demonstrations.from_jsonl(path)
    with OpenAI() as client:
        print(label_of(text, demonstrations, dpf.tasks.by_name(task), client=client, model=model))


if __name__ == "__main__":
    main(*sys.argv[1:])
