"""Servers that answer as their documentation says: `servers.scripted` puts one on a port."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager

import numpy as np

END = "<|im_end|>"
VOCABULARY = [*map(chr, range(32, 127)), "\n", END]
PADDED = len(VOCABULARY) + 7
"""The scripted model has more outputs than its tokenizer has tokens, as most models have."""


def weights(prompt, settings):
    raw = np.cos(np.arange(PADDED) * (1 + sum((i + 1) * t for i, t in enumerate(prompt)))) * 3
    raw[len(VOCABULARY) :] = -30
    raw = raw / (settings.get("temperature") or 1)  # 0 samples the likeliest, and scales nothing
    return raw - np.log(np.exp(raw).sum())


def moved(logprobs, phase, amount=1e-4):
    """Log-probabilities that differ a little from these, in a way that the phase says."""
    found = logprobs + amount * np.cos(np.arange(len(logprobs)) * phase)
    return found - np.log(np.exp(found).sum())


def tokenize(text):
    tokens = []
    while text:
        piece = END if text.startswith(END) else text[0]
        tokens.append(VOCABULARY.index(piece if piece in VOCABULARY else "?"))
        text = text[len(piece) :]
    return tokens


class Script:
    """The pages that all these servers have, with the fields of vLLM."""

    owner, text_field, most, raw, model = "vllm", "prompt", PADDED, True, "served"

    def __init__(self):
        self.bodies = []

    def __call__(self, path, body):
        self.bodies.append(body)
        page = getattr(self, path.removeprefix("/v1").strip("/"), None)
        return (404, {}, {"error": "no such page"}) if page is None else page(body)

    def models(self, _):
        return 200, {}, {"data": [{"id": "served", "owned_by": self.owner, "max_model_len": 512}]}

    def tokenize(self, body):
        return 200, {}, {"tokens": tokenize(body["prompt"])}

    def detokenize(self, body):
        text = "".join(VOCABULARY[token] for token in body["tokens"] if token < len(VOCABULARY))
        return 200, {}, {self.text_field: text}

    def logprobs(self, prompt, settings):
        return weights(prompt, {} if self.raw else settings)


class VLLM(Script):
    def completions(self, body):
        if body["logprobs"] > self.most:
            message = "Requested sample logprobs of {logprobs}, which is greater than max allowed: "
            message = message.format(**body) + str(self.most)
            return 400, {}, {"error": {"message": message, "code": 400}}
        if any(len(prompt) > 500 for prompt in body["prompt"]):
            return 400, {}, {"error": {"message": f"too long: {body['prompt']}", "code": 400}}
        choices = [
            {"index": index, "text": "", "logprobs": {"top_logprobs": [self.top(prompt, body)]}}
            for index, prompt in enumerate(body["prompt"])
        ]
        return 200, {}, {"model": self.model, "choices": choices[::-1]}

    def top(self, prompt, body):
        values = self.logprobs(prompt, body)
        ids = [*(body.get("logprob_token_ids") or np.argsort(-values)[: body["logprobs"]])]
        if body.get("temperature"):  # the sampled token is listed too
            ids.append(secrets.randbelow(PADDED))
        return {f"token_id:{token}": float(values[token]) for token in ids}


class LlamaServer(Script):
    """llama-server, with slots that take time, and with a prompt cache.

    `seconds` tells how long a prompt takes in a slot, where it stays to the end even if nobody waits
    for it any more; `fault` gets a prompt and how many are under way, and returns an answer or None.
    """

    owner, slots, context = "llamacpp", 1, 512

    def __init__(self, slots=1, *, tells_slots=True):
        super().__init__()
        self.slots, self.tells_slots = slots, tells_slots
        self.seconds = lambda _: 0.0
        self.fault = lambda *_: None
        self.crowds = []
        self._free = threading.Semaphore(slots)
        self._lock = threading.Lock()
        self.under_way = 0
        self._cached = []

    def props(self, _):
        told = {"total_slots": self.slots} if self.tells_slots else {}
        return 200, {}, {"default_generation_settings": {"n_ctx": self.context}, **told}

    def tokenize(self, body):
        return 200, {}, {"tokens": tokenize(body["content"])}

    def detokenize(self, body):
        return 200, {}, {"content": "".join(VOCABULARY[token] for token in body["tokens"])}

    def completion(self, body):
        prompt = body["prompt"]
        with self._counted() as under_way:
            self.crowds.append((prompt, under_way))
            found = self.fault(prompt, under_way)
            with self._free:
                time.sleep(self.seconds(prompt))
                return self.computed(prompt, body) if found is None else found

    def computed(self, prompt, body):
        values = weights(prompt, {})[: len(VOCABULARY)].astype(np.float32)
        values -= np.float32(np.log(np.exp(values.astype(np.float64)).sum()))
        if body.get("cache_prompt", True) and self._cached and self._cached[:3] == prompt[:3]:
            values[0] = np.nextafter(values[0], -np.inf)
        self._cached = prompt
        spelled = [[] if text == END else list(text.encode()) for text in VOCABULARY]
        top = [
            {"id": token, "bytes": spelled[token], "logprob": float(values[token])}
            for token in range(len(VOCABULARY))
        ]
        found = {
            "completion_probabilities": [{"top_logprobs": top}],
            "generation_settings": {"logit_bias": [{"token": VOCABULARY.index(END)}]},
            "model": self.model,
            "tokens_evaluated": len(prompt),
            "truncated": False,
        }
        return 200, {}, found

    @contextmanager
    def _counted(self):
        with self._lock:
            self.under_way += 1
            count = self.under_way
        try:
            yield count
        finally:
            with self._lock:
                self.under_way -= 1
