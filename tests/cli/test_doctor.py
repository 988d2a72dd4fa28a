"""The demo repeats nothing of a single ticket, whatever the model prefers."""

import dataclasses
import json
import string

import pytest

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.baselines import verbatim
from dpfewshot.cli import doctor
from dpfewshot.cli.application import run
from dpfewshot.cli.doctor import demo_synthesizer
from dpfewshot.sample_data import SUPPORT_TICKETS, secrets, support_tickets

ALPHABET = [*string.printable[:95], "\n", *(f"<{i}>" for i in range(10))]
TICKETS = support_tickets()
SECRETS = secrets(TICKETS)


class Leaker(Scripted):
    """A character-level model that does nothing but repeat the secret of the ticket in its prompt."""

    def __init__(self) -> None:
        super().__init__(ALPHABET, self.answer)
        self._seen: dict[str, str] = {}

    def answer(self, prompt: list[int]) -> list[float]:
        text = self.detokenize(prompt)
        ticket, _, released = text.rpartition("Ticket:")
        secret = self.secret_of(ticket)
        wanted = secret[len(released)] if len(released) < len(secret) else "\n"
        probabilities = [0.0] * len(ALPHABET)
        probabilities[ALPHABET.index(wanted)] = 1.0
        return probabilities

    def secret_of(self, ticket: str) -> str:
        if ticket not in self._seen:
            found = sorted(secrets([dpf.Record(ticket, "x")]))
            self._seen[ticket] = " " + found[0] if found else " nothing to say"
        return self._seen[ticket]


def leaked(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret.lower() in text.lower()]


@pytest.mark.slow
def test_demos_of_a_model_that_wants_to_leak() -> None:
    backend = Leaker()
    texts = [one.text for _ in range(10) for one in demo_synthesizer(backend).generate_all()]
    assert len(texts) == 30
    assert leaked("\n".join(texts)) == []


def test_the_demo_says_whether_a_text_repeats_a_secret() -> None:
    made = [verbatim(record) for record in TICKETS[:2]]
    assert doctor.secrets_in(made).startswith(f"{len(secrets(TICKETS[:2]))} of the tickets' order numbers")
    harmless = [dataclasses.replace(one, text="I would like a refund.") for one in made]
    assert doctor.secrets_in(harmless).startswith("None of the tickets'")


def test_control_without_privacy_it_leaks() -> None:
    settings = {"max_tokens": 40, "settings": dpf.Settings(prompts_per_draw=1, tokens_per_draw=40)}
    synthesizer = dpf.Synthesizer(SUPPORT_TICKETS, TICKETS[:5], Leaker(), budget=dpf.NO_PRIVACY, **settings)
    assert leaked("\n".join(one.text for one in synthesizer.generate_all()))


@pytest.mark.model
@pytest.mark.parametrize(
    ("tokens", "work"),
    [(2, 300), pytest.param(doctor.MAX_TOKENS, doctor.PROMPT_TOKENS, marks=pytest.mark.soak)],
)
def test_the_demo_with_the_packaged_model(
    tokens: int, work: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MAX_TOKENS", tokens)
    monkeypatch.setattr(doctor, "PROMPT_TOKENS", work)
    assert run(["demo", "--json"]) == 0
    output = capfd.readouterr()
    document = json.loads(output.out)
    assert leaked(output.out + output.err) == []
    assert [one["label"] for one in document["demonstrations"]] == list(SUPPORT_TICKETS.labels or ())[:3]
    assert all(one["text"] and one["certified"] for one in document["demonstrations"])
    assert 3.9 < document["spent"]["epsilon"] <= 4
