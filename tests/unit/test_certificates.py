"""What a certificate says of the model, the tokenizer and the prompt."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dpfewshot.certificates import Provenance, line_hash
from tests.support.factory import demonstration, synthesizer
from tests.support.scripts import TASK, Sentence

FULL = Provenance(f"sha256:{'ab' * 32}", f"sha256:{'cd' * 32}", f"sha256:{'ef' * 32}")


def test_a_line_has_the_first_digits_and_the_plan_all_of_them() -> None:
    assert FULL.short() == Provenance("sha256:" + "ab" * 8, "sha256:" + "cd" * 8, "sha256:" + "ef" * 8)
    assert Provenance.of(FULL.details()) == FULL
    claimed = Provenance("claimed:Qwen/Qwen2.5-7B-Instruct-and-more", None, None)
    assert claimed.short() == claimed
    assert Provenance.of({"model": 3, "mechanism": "gaussian"}) == Provenance()


def test_the_plan_and_the_certificate_name_what_writes() -> None:
    class Named(Sentence):
        model_identity = FULL.model
        tokenizer_identity = FULL.tokenizer

    with synthesizer(Named()) as made:
        made_of = made.set_up.provenance
        details = made.set_up.account_details(made.plan.strata[0])
        one = made.generate("refund")
    assert (made_of.model, made_of.tokenizer) == (FULL.model, FULL.tokenizer)
    assert Provenance.of(details) == made_of
    assert one.certificate is not None
    assert one.certificate.model == "sha256:" + "ab" * 8


@pytest.mark.parametrize(
    "change", [{"instruction": "Write another ticket."}, {"label_field": "Sort"}, {"multiline": True}]
)
def test_other_words_of_the_prompt_have_another_hash(change: dict[str, Any]) -> None:
    prompts = {
        synthesizer(task=task).set_up.provenance.prompt
        for task in (TASK, dataclasses.replace(TASK), dataclasses.replace(TASK, **change))
    }
    assert len(prompts) == 2


def test_a_line_and_its_copy_from_a_file_have_one_hash() -> None:
    one = demonstration("a lone \ud83d surrogate")
    assert line_hash(one.as_line()) == line_hash(demonstration("a lone ? surrogate").as_line())
    assert line_hash(one.as_line()) != line_hash(demonstration("a lone surrogate").as_line())
    assert line_hash(dict(reversed(one.as_line().items()))) == line_hash(one.as_line())
