"""The packaged model writes fields: their names are appended to the prompts of a draw, with the same bits."""

import dataclasses

import pytest

pytest.importorskip("llama_cpp", exc_type=ImportError)

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.mechanisms import Gaussian
from tests.support.fields import TASK

MAILS = [
    {
        "Subject": f"Order {number}",
        "Body": f"Hello,\nwhere is order {number}?\n\nThank you",
        "label": "delivery",
    }
    for number in range(4)
]


@pytest.mark.model
@pytest.mark.soak
def test_a_draw_of_several_tokens_writes_the_fields_of_single_draws() -> None:
    """Every record is in every draw, and there is no noise: only the way to the same prompts differs."""
    task = dataclasses.replace(TASK, labels=("delivery",), multiline=True)
    records = dpf.as_records(MAILS, text=("Subject", "Body"))
    with LlamaCpp(
        packaged_model_path(), context_tokens=256, kept_prompts=7, threads=1, weights="file"
    ) as backend:
        made = [
            dpf.Synthesizer(
                task,
                records,
                backend,
                budget=dpf.NO_PRIVACY,
                mechanism=Gaussian(top_k=20),
                max_tokens=14,
                settings=dpf.Settings(prompts_per_draw=4, tokens_per_draw=every),
            ).generate("delivery")
            for every in (1, 14)
        ]
    assert made[0].fields == made[1].fields
    assert all(made[0].fields.values())
