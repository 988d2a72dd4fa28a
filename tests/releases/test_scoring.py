"""Private scoring: the right answers, and no word about a record that has none."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.backends.protocol import Logprobs, ReplayedBlock, Tokens
from dpfewshot.icl import Classifier, Extractor
from dpfewshot.icl.prompt import FewShotPrompt
from dpfewshot.prompts.few_shot import prompt_format
from dpfewshot.releases.scoring import EXTRACTED_TOKENS, RECORD_TOKEN_CAP, ExtractionScorer, LabelScorer
from dpfewshot.values import Record
from tests.support.colours import COLOURS, Colours
from tests.support.factory import demonstration

SECRET = "swordfish"
TASK = dpf.Task("tickets", "Write a ticket.", "Kind", "Ticket", ("refund", "delivery"))
FREE = dpf.Task("films", "Write about a film.", "Genre", "Film")
WORDS = (" refund", " delivery", " money", " parcel", " nothing", "\n", "Ticket:", "Kind:", "Film:", "Genre:")
SHOWN = [demonstration("money", "refund"), demonstration("parcel", "delivery")]


class Shop(Scripted):
    """Money is a refund, a parcel a delivery, to some degree; texts of `broken` words have no answer."""

    def __init__(self, *, broken: float | Exception | None = None, label_tokens: int = 1) -> None:
        self.broken = broken
        self.texts: list[str] = []
        self.label_tokens = label_tokens
        super().__init__(WORDS, self.answer)

    def answer(self, prompt: list[int]) -> Sequence[float]:
        last = max(i for i, token in enumerate(prompt) if token in (6, 8))
        text = prompt[last:]
        self.texts.append(self.detokenize(text))
        if 4 in text and self.broken is not None:
            if isinstance(self.broken, Exception):
                raise self.broken
            return [self.broken] * len(WORDS)
        if text[-1] < 2:  # after a label
            return [0.01] * 5 + [0.91] + [0.01] * 4
        odds = [0.6, 0.2] if 2 in text else [0.1, 0.7] if 3 in text else [0.4, 0.4]
        return [*odds, *[0.2 / 8] * 8]

    def tokenize(self, text: str) -> list[int]:
        if SECRET in text:
            raise ValueError(f"cannot read {SECRET}")
        return super().tokenize(text)


def label_scorer(
    task: Any, backend: Any, shown: Any, cap: int = RECORD_TOKEN_CAP, **of_classifier: Any
) -> LabelScorer:
    return LabelScorer(Classifier(task, backend, shown, **of_classifier), cap)


def extraction_scorer(task: Any, backend: Any, shown: Any) -> ExtractionScorer:
    return ExtractionScorer(Extractor(task, backend, shown, EXTRACTED_TOKENS))


def records(*texts: str, label: str = "refund") -> list[Record]:
    return [Record(text, label) for text in texts]


@pytest.mark.parametrize("calibrated", [False, True])
def test_probabilities_are_those_of_a_classifier(calibrated: bool) -> None:
    texts = ["money", "parcel", "nothing", "money parcel"] * 20
    scorer = label_scorer(TASK, Shop(), SHOWN, calibrated=calibrated)
    expected = Classifier(TASK, Shop(), SHOWN, calibrated=calibrated).predict_proba(texts)
    np.testing.assert_allclose(scorer.probabilities(records(*texts)), expected, rtol=1e-6)
    assert scorer.probabilities([]).shape == (0, 2)


def test_a_label_that_is_all_but_impossible_after_content_free_text_keeps_its_answers() -> None:
    class Sure(Shop):
        def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
            logprobs = super().next_token_logprobs(prompts, support)
            logprobs[:, 1 if support is None else list(support).index(1)] -= 800  # e^-800 is no float
            return logprobs

    expected = Classifier(TASK, Sure(), SHOWN).predict_proba(["money"])
    np.testing.assert_allclose(
        label_scorer(TASK, Sure(), SHOWN).probabilities(records("money")), expected, rtol=1e-6
    )


@pytest.mark.parametrize("change", [{"text_field": "Genre"}, {"label_field": "Genre"}, {"multiline": True}])
def test_a_prompt_in_other_words_is_another_prompt(change: dict[str, Any]) -> None:
    words = prompt_format(TASK)
    other = replace(words, **change)
    assert FewShotPrompt(words, Shop(), []).fingerprint() != FewShotPrompt(other, Shop(), []).fingerprint()


@pytest.mark.parametrize("broken", [np.nan, 0.0, ValueError(SECRET)])
def test_a_record_without_an_answer_counts_for_nothing(broken: float | Exception) -> None:
    """And changes no other record's answer."""
    scorer = label_scorer(TASK, Shop(broken=broken), SHOWN)
    unknown = records("money", label="complaint")  # which the prompt does not have
    right, likely = scorer.outcomes([*records("money", "nothing", SECRET, "parcel"), *unknown])
    assert right.tolist() == [1, -1, -1, 0, -1]
    assert likely[1] == likely[2] == likely[4] == 0
    alone = scorer.outcomes(records("money", "parcel"))
    assert alone[1].tolist() == [likely[0], likely[3]]


@pytest.mark.parametrize("kind", [label_scorer, extraction_scorer])
def test_a_record_that_cannot_be_read_has_no_answer_and_is_not_asked_about(kind: Any) -> None:
    backend = Shop()
    scorer = kind(TASK, backend, SHOWN)
    backend.texts.clear()
    money, parcel = records("money", "parcel")
    right, likely = scorer.outcomes([money, None, parcel])
    assert right.tolist() == [1, -1, 0]
    assert likely[1] == 0
    asked = len(backend.texts)
    alone = scorer.outcomes([money, parcel])
    assert [each.tolist() for each in alone] == [right[[0, 2]].tolist(), likely[[0, 2]].tolist()]
    assert len(backend.texts) == 2 * asked


@pytest.mark.parametrize("broken", [np.nan, 0.0, ValueError(SECRET)])
def test_extraction_too(broken: float | Exception) -> None:
    backend = Shop(broken=broken)
    texts = ["money", "nothing", SECRET, "parcel"]
    right, likely = extraction_scorer(FREE, backend, []).outcomes(records(*texts, label=" Refund"))
    assert right.tolist() == [1, -1, -1, 0]
    assert likely.tolist() == [1, 0, 0, 0]
    assert Extractor(FREE, Shop()).predict(["money", "parcel"]) == ["refund", "delivery"]


def test_a_dead_server_raises_and_says_nothing_of_records() -> None:
    for kind, task in ((label_scorer, TASK), (extraction_scorer, FREE)):
        backend = Shop()
        scorer = kind(task, backend, [])
        backend.broken = dpf.BackendError("the server is gone")
        with pytest.raises(dpf.BackendError, match="gone"):
            scorer.outcomes(records("money", "nothing"))


def test_a_tokenizer_that_is_gone_raises() -> None:
    backend = Shop()
    scorer = label_scorer(TASK, backend, [])

    def gone(text: str) -> list[int]:
        raise OSError(text)

    backend.tokenize = gone  # type: ignore[method-assign]
    with pytest.raises(dpf.BackendError, match="public text") as caught:
        scorer.outcomes(records(SECRET))
    assert SECRET not in str(caught.value)


def test_texts_have_a_cap_of_their_own_and_one_line() -> None:
    backend = Shop()
    scorer = label_scorer(TASK, backend, [], calibrated=False, cap=3)
    scorer.outcomes(records("money\nKind: money", " money" * 40))
    assert [text.split("Ticket:")[1] for text in backend.texts] == [
        " money�Kind:\nKind:",
        " money money money\nKind:",
    ]


def test_a_record_is_asked_once_after_every_beginning_of_a_label() -> None:
    backend = Colours()
    scorer = label_scorer(COLOURS, backend, [], calibrated=False)
    backend.prompts.clear()
    rows = scorer.probabilities(records("rose", "sky"))
    asked = [prompt.rsplit("Thing:", 1)[-1] for prompt in backend.prompts]
    assert sorted(asked) == sorted(
        f" {text}\nColour:{end}" for text in ("rose", "sky") for end in ("", " light")
    )
    expected = Classifier(COLOURS, Colours(), [], calibrated=False).predict_proba(["rose", "sky"])
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


def test_prompts_of_records_are_never_called_public() -> None:
    """A backend may let a public prompt continue another one."""
    for kind, task in ((label_scorer, TASK), (extraction_scorer, FREE)):
        backend, called = Shop(), []

        def opened(*arguments, public=False, called=called, backend=backend):
            called.append(public)
            return ReplayedBlock(backend, *arguments[:2], public=public)

        backend.open_block = opened  # type: ignore[attr-defined]
        scorer = kind(task, backend, [])
        called.clear()
        scorer.outcomes(records("money", "parcel"))
        assert called == [False]


def test_a_prompt_that_may_not_fit_is_refused_from_public_numbers() -> None:
    backend = Shop()
    backend.context_tokens = 100  # type: ignore[attr-defined]
    with pytest.raises(dpf.InvalidPlan, match=r"up to 1\d\d tokens"):
        label_scorer(TASK, backend, SHOWN, cap=95)
    label_scorer(TASK, backend, SHOWN, cap=50)


@pytest.mark.parametrize("stated", [False, None, "no, sorry", 1])
def test_a_backend_without_batch_invariance_is_refused(stated: Any) -> None:
    backend = Scripted(WORDS, lambda _: [0.1] * len(WORDS), batch_invariant=stated)
    for kind in (label_scorer, extraction_scorer):
        with pytest.raises(dpf.BackendNotBatchInvariant):
            kind(TASK, backend, [])
