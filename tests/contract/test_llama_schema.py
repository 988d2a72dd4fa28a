"""The packaged model writes JSON under a budget: it always parses, and is valid under its schema."""

import datetime as dt
import json

import pytest

pytest.importorskip("llama_cpp", exc_type=ImportError)

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path

LABELS = ("Payments", "Logistics")
TASK = dpf.Task(
    name="extracts",
    instruction="Given a team, write the record of a ticket for it.",
    label_field="Team",
    text_field="Record",
    labels=LABELS,
    schema={
        "type": "object",
        "properties": {
            "category": {"enum": ["refund", "late delivery", "other"]},
            "date": {"type": "string", "format": "date"},
            "amount": {"type": "number", "minimum": 0, "maximum": 999},
            "note": {"type": "string", "maxLength": 24},
        },
        "required": ["category", "date", "amount", "note"],
    },
)
RECORDS = [
    dpf.Record(
        json.dumps(
            {
                "category": ("refund", "late delivery")[number % 2],
                "date": str(dt.date(2026, 1, 1) + dt.timedelta(number)),
                "amount": number / 4,
                "note": f"Order {number} is late",
            }
        ),
        LABELS[number % 2],
    )
    for number in range(300)
]


@pytest.mark.model
@pytest.mark.soak
def test_json_from_the_packaged_model() -> None:
    max_tokens = 20
    with LlamaCpp(packaged_model_path(), context_tokens=256, kept_prompts=7, weights="file") as backend:
        synthesizer = dpf.Synthesizer(
            TASK,
            RECORDS,
            backend,
            budget=dpf.PrivacyBudget(4, 1e-5),
            max_tokens=max_tokens,
            settings=dpf.Settings(prompts_per_draw=4, tokens_per_draw=max_tokens),
        )
        made = [synthesizer.generate("Payments")]
    for one in made:
        ticket = json.loads(one.text)
        assert list(ticket) == ["category", "date", "amount", "note"]
        assert ticket["category"] in {"refund", "late delivery", "other"}
        assert dt.date.fromisoformat(ticket["date"])
        assert 0 <= ticket["amount"] <= 999
        assert len(ticket["note"]) <= 24
        assert one.token_count <= max_tokens
