"""Characters of several tokens: no cap cuts one, and no released text holds a part of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpfewshot.backends.text import ending_tokens, first_tokens, whole_text
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.values import Record
from dpfewshot.writing.draft import Draft
from tests.support.fields import TASK, Bytes

FREE = dataclasses.replace(TASK, labels=None, text_fields=(), text_field="Body")
SCRIPTS = st.sampled_from("aä中文عربहिन्दी😀👩\u200d🇩\u0301 ")
ANY = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
TEXTS = st.lists(SCRIPTS | ANY, max_size=20).map("".join)


class Pairs(Bytes):
    """Two bytes a token where there are two: one may end a character and begin the next."""

    vocabulary_size = 256 + 256 * 256

    def tokenize(self, text: str) -> list[int]:
        """Pairs of the text's bytes, and the last one alone."""
        data = text.encode()
        pairs = [256 + 256 * first + last for first, last in zip(data[::2], data[1::2], strict=False)]
        return [*pairs, *data[len(data) // 2 * 2 :]]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The bytes' text."""
        data = b"".join(bytes([one] if one < 256 else divmod(one - 256, 256)) for one in tokens)
        return data.decode(errors="replace")


PAIRS = Pairs()
ENDS = ending_tokens(Bytes())


@given(text=TEXTS, count=st.integers(0, 40))
@example(text="中文", count=1)  # ends within the first character
@example(text="中文", count=2)  # ends within the second, in a token that ends the first
@example(text="a\ufffd\ufffd中", count=4)  # the record's own replacement character is kept
def test_a_cap_keeps_whole_characters(text: str, count: int) -> None:
    for backend in (Bytes(), PAIRS):
        tokens = backend.tokenize(text)
        kept = first_tokens(backend, tokens, count)
        assert kept == tokens[: len(kept)]
        assert len(kept) <= count
        assert text.startswith(backend.detokenize(kept))
    if "\ufffd" not in text:
        kept = first_tokens(Bytes(), list(text.encode()), count)
        assert bytes(kept).decode() == text.encode()[:count].decode(errors="ignore")


@pytest.mark.parametrize("backend", [Bytes(), PAIRS])
def test_a_plain_cut_would_break_them(backend: Bytes) -> None:
    """What the test above would find."""
    tokens = backend.tokenize("中文")
    broken = [count for count in range(len(tokens)) if "\ufffd" in backend.detokenize(tokens[:count])]
    assert broken == ([1, 2, 4, 5] if len(tokens) == 6 else [1, 2])


@given(text=TEXTS, label=TEXTS, cap=st.integers(1, 30))
def test_a_records_body_is_text(text: str, label: str, cap: int) -> None:
    """If labels are free, the label has a cap of its own. Two fields share one."""
    body = PromptWriter(FREE, Bytes(), cap).body(Record(text, label))
    assert body is not None
    label_written, _, text_written = bytes(body).decode().partition("\nBody:")
    for written, whole in ((label_written, label), (text_written, text)):
        assert f" {' '.join(whole.split())}".startswith(written)
        assert len(written.encode()) <= cap
    fields = TASK.layout.text({"Subject": label, "Body": text})
    both = PromptWriter(TASK, Bytes(), cap).body(Record(fields, "refund"))
    assert both is not None
    assert len(bytes(both).decode().replace("\nBody:", "", 1).encode()) <= cap


@given(text=TEXTS, cut=st.integers(0, 80))
def test_a_released_text_ends_with_a_whole_character(text: str, cut: int) -> None:
    """Wherever the tokens end: in the text are all characters that they finish, and nothing else."""
    released = text.encode()[:cut]
    finished = released.decode(errors="ignore").strip()
    assert whole_text(Bytes(), released).strip() == finished


@given(released=st.binary(max_size=60), multiline=st.booleans())
@example(released=b"Hi\n\xe4\xb8\nthere", multiline=True)  # a line with a part alone is blank
def test_noise_leaves_no_part_of_a_character(released: bytes, multiline: bool) -> None:
    layout = dataclasses.replace(TASK, multiline=multiline).layout
    draft = Draft(Bytes(), layout)
    for token in released:
        if not draft.finished and token not in draft.excluded:
            draft.add(token)
    assert "\ufffd" not in draft.text()
    assert layout.text(layout.fields_of(draft.text())) == draft.text()
