"""Records in several scripts, from their tokens to a released text, on the packaged model.

Its vocabulary is English: most characters below are two to four tokens, so both caps and T end within some.
"""

import string

import pytest

pytest.importorskip("llama_cpp", exc_type=ImportError)

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp
from dpfewshot.backends.characters import BROKEN
from dpfewshot.mechanisms import Gaussian
from dpfewshot.prompts.writer import PromptWriter
from tests.support import inside
from tests.support.llama_prompts import backend

FIXTURES = (backend,)
pytestmark = pytest.mark.model

TASK = dpf.Task("mails", "Write a customer's mail.", "Kind", "Mail", ("delivery",))
MAILS = {
    "German": ["Wo bleibt mein Päckchen? Grüße, Jörg", "Mein Paket für Köln ist längst überfällig."],
    "Chinese": ["我的包裹还没有到。请帮我查一下。", "快递为什么还没有送到我家。"],
    "Arabic": ["أين طردي؟ لم يصل حتى الآن.", "لم أستلم طلبي بعد، متى سيصل؟"],
    "Hindi": ["मेरा पार्सल अभी तक नहीं आया है।", "कृपया बताइए कि मेरा सामान कब आएगा।"],
    "emoji": ["📦😡😡 🚚💨❓", "📦🕐🕑🕒 😢😢 👩‍👩‍👧🎁❓"],
}


@pytest.mark.parametrize(
    "language",
    [pytest.param(each, marks=[] if each == "Chinese" else pytest.mark.soak) for each in MAILS],
)
def test_a_text_is_read_and_written_in_whole_characters(backend: LlamaCpp, language: str) -> None:
    mails = MAILS[language]
    synthesizer = dpf.Synthesizer(
        TASK,
        dpf.as_records({"text": text, "label": "delivery"} for text in mails),
        backend,
        budget=dpf.NO_PRIVACY,
        mechanism=Gaussian(top_k=None),
        max_tokens=12,
        settings=dpf.Settings(prompts_per_draw=len(mails), tokens_per_draw=12, record_token_cap=30),
    )
    cuts = inside.beginnings(synthesizer, "delivery", 12)
    whole = cuts[-1][1]
    assert set(whole) & set("".join(mails)) - set(string.printable)  # the model writes the records' script
    assert all(whole.startswith(text) and BROKEN not in text for _, text in cuts)
    assert language == "German" or any(BROKEN in backend.detokenize(tokens) for tokens, _ in cuts)


@pytest.mark.parametrize("language", MAILS)
def test_no_cap_cuts_a_character(backend: LlamaCpp, language: str) -> None:
    text = MAILS[language][0]
    whole = backend.tokenize(f" {text}")
    broken = 0
    for cap in range(1, len(whole) + 1):
        body = PromptWriter(TASK, backend, cap).body(dpf.Record(text, "delivery"))
        assert body is not None
        assert cap - 3 <= len(body) <= cap
        assert f" {text}".startswith(backend.detokenize(body))
        broken += BROKEN in backend.detokenize(whole[:cap])
    assert language == "German" or broken > 0  # what a plain cut would do; umlauts are tokens
