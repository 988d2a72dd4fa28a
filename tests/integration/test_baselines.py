"""The baselines, with scripted language models."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.backends.protocol import Logprobs, ReplayedBlock, Tokens
from dpfewshot.values import Record
from dpfewshot.writing.public_loop import COMPLETION
from tests.support.scripts import TASK, WORDS, Sentence, tickets

SECRET = "swordfish"
FREE = dpf.Task("movies", "Write a review.", "Genre", "Review")


def instruction_only(backend: Any = None, **options: Any) -> list[dpf.Demonstration]:
    return dpf.instruction_only_demonstrations(TASK, backend or Sentence(), **options)


# ---- ε = 0 -----------------------------------------------------------------------------------------------


def test_a_demonstration_of_each_label_says_what_it_is() -> None:
    made = instruction_only()
    assert [one.label for one in made] == ["refund", "delivery"]
    for one in made:
        assert one.as_line() == {
            "text": "my parcel is late",
            "label": one.label,
            "epsilon": 0.0,
            "delta": 0.0,
            "relation": "add-remove",
            "certified": True,
            "mechanism": "instruction-only",
            "tokens": 5,
            "finished": True,
        }


def test_the_prompt_is_the_instruction_the_label_and_what_was_written() -> None:
    prompts: list[list[int]] = []

    def answer(prompt: list[int]) -> list[float]:
        prompts.append(list(prompt))
        return [0.0, 0.0, 0.0, 0.0, 1.0]

    backend = Scripted((TASK.preamble(), "Kind:", " refund", "\nTicket:", "yes"), answer)
    dpf.instruction_only_demonstrations(TASK, backend, ["refund"], max_tokens=3)
    assert prompts[:3] == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4]]
    assert prompts[3:] == [[0, 1, 2, 3, *[4] * many] for many in range(3, 3 + COMPLETION)]


def test_a_demonstration_is_never_empty_and_draws_no_more_than_asked_for() -> None:
    silent = Sentence(["\n", "\n"], sure=0.9)
    assert {one.text for one in instruction_only(silent)} == {"my"}
    short = instruction_only(max_tokens=2)[0]
    assert (short.text, short.token_count, short.finished) == ("my parcel is late", 2, False)
    ending = Scripted(["a", "<end>"], lambda _prompt: [0.4, 0.6], end_token_ids=[1])
    assert instruction_only(ending, labels=["refund"])[0].text == "a"


def test_several_shots_differ_unless_they_are_told_not_to() -> None:
    shots = instruction_only(Sentence(sure=0.3), shots=6, max_tokens=8)
    assert [one.label for one in shots] == ["refund", "delivery"] * 6
    assert len({one.text for one in shots}) > 1
    assert len({one.text for one in instruction_only(Sentence(sure=0.3), shots=6, temperature=0.0)}) == 1
    assert {one.text for one in instruction_only(shots=3, top_k=1)} == {"my parcel is late"}
    assert len({instruction_only(Sentence(sure=0.2), temperature=1.0)[0].text for _ in range(8)}) > 1


def test_an_injected_source_repeats_it_and_no_guarantee_is_lost() -> None:
    made = [
        instruction_only(Sentence(sure=0.2), shots=4, random_source=random.Random(3).randbytes) for _ in "ab"
    ]
    assert made[0] == made[1]
    assert all(one.certified for one in made[0])


def test_free_labels_are_public_input() -> None:
    made = dpf.instruction_only_demonstrations(FREE, Sentence(), ["drama", "noir"], shots=2, temperature=0.0)
    assert [one.label for one in made] == ["drama", "noir"] * 2
    with pytest.raises(dpf.InvalidPlan, match="labels="):
        dpf.instruction_only_demonstrations(FREE, Sentence())


def test_a_backend_that_keeps_a_cache_is_told_that_all_is_public_and_is_closed() -> None:
    opened: list[tuple[int, int, bool]] = []
    closed: list[int] = []

    class Block(ReplayedBlock):
        def close(self) -> None:
            closed.append(1)
            super().close()

    class Caching(Sentence):
        def open_block(
            self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
        ) -> Block:
            opened.append((len(suffixes), tokens, public))
            return Block(self, prefix, suffixes, public=public)

    instruction_only(Caching(), shots=2, max_tokens=7)
    assert opened == [(1, 7, True)] * 4
    assert len(closed) == 4

    class Failing(Caching):
        def next_token_logprobs(self, *_: object) -> Logprobs:
            raise dpf.BackendError("gone")

    with pytest.raises(dpf.BackendError, match="gone"):
        instruction_only(Failing())
    assert len(closed) == len(opened)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (np.full((1, len(WORDS)), np.nan), "context"),
        (np.full((1, len(WORDS)), -np.inf), "context"),
        (np.zeros((2, len(WORDS))), "shape"),
        (np.zeros(len(WORDS)), "shape"),
    ],
)
def test_a_backend_that_cannot_tell_is_an_error(answer: Any, says: str) -> None:
    class Odd(Sentence):
        def next_token_logprobs(self, *_: object) -> Logprobs:
            return answer.astype(np.float32)  # type: ignore[no-any-return]

    with pytest.raises(dpf.BackendError, match=says):
        instruction_only(Odd())


def test_tokens_whose_probability_is_unknown_are_not_drawn() -> None:
    class Partly(Sentence):
        def next_token_logprobs(self, *_: object) -> Logprobs:
            return np.array([[np.nan, -np.inf, np.inf, -1.0, np.nan, -2.0, np.nan, -9.0]], dtype=np.float32)

    drawn = {instruction_only(Partly(), shots=2, max_tokens=1, temperature=5.0)[0].text for _ in range(40)}
    assert drawn == {"is", "back"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shots": 0}, "shots"),
        ({"shots": True}, "shots"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"top_k": 0}, "top_k"),
        ({"temperature": -0.1}, "temperature"),
        ({"labels": []}, "label"),
        ({"labels": ["refund", "refund"]}, "label"),
    ],
)
def test_settings_outside_their_range_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(dpf.InvalidPlan, match=says):
        instruction_only(**options)
    with pytest.raises(dpf.InvalidTask):
        instruction_only(labels=["complaint"])


# ---- no privacy ------------------------------------------------------------------------------------------


def test_records_as_they_stand() -> None:
    records = tickets(60)
    made = dpf.non_private_sample(TASK, records, shots=5)
    assert [one.label for one in made] == ["refund", "delivery"] * 5
    for one in made:
        assert Record(one.text, one.label) in records
        assert one.as_line() | {"text": "", "label": ""} == {
            "text": "",
            "label": "",
            "epsilon": None,
            "delta": None,
            "relation": "add-remove",
            "certified": False,
            "mechanism": "non-private-sample",
            "tokens": 0,
            "finished": True,
        }


def test_draws_differ_and_an_injected_source_repeats_them(tmp_path: Path) -> None:
    assert len({dpf.non_private_sample(TASK, tickets())[0].text for _ in range(20)}) > 1
    source = random.Random(1).randbytes
    made = [dpf.non_private_sample(TASK, tickets(), random_source=random.Random(1).randbytes) for _ in "ab"]
    assert made[0] == made[1]
    made[0].to_jsonl(tmp_path / "made.jsonl")
    assert dpf.Demonstrations.from_jsonl(tmp_path / "made.jsonl").items == made[0].items
    assert not made[0].certified
    rows = [{"text": f"{SECRET} {i}", "label": f"label {i % 3}"} for i in range(9)]
    drawn = dpf.non_private_sample(FREE, rows, ["label 2"], shots=3, random_source=source)
    assert {one.text for one in drawn} == {f"{SECRET} {i}" for i in (2, 5, 8)}  # none is drawn twice


def test_what_cannot_be_drawn_is_refused_without_a_word_of_the_records() -> None:
    records = [Record(f"{SECRET} 1", "refund"), Record(f"{SECRET} 2", "delivery")]
    for task, given, options, error in (
        (TASK, records, {"shots": 2}, dpf.InvalidPlan),
        (TASK, records, {"shots": 0}, dpf.InvalidPlan),
        (FREE, records, {}, dpf.InvalidPlan),
        (FREE, records, {"labels": ["nobody's"]}, dpf.InvalidPlan),
        (TASK, records, {"labels": ["complaint"]}, dpf.InvalidTask),
        (TASK, [*records, Record("a", SECRET)], {}, dpf.InvalidRecords),
    ):
        with pytest.raises(error) as caught:
            dpf.non_private_sample(task, given, **options)  # type: ignore[arg-type]
        assert SECRET not in str(caught.value)
