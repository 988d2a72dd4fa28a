"""A backend that fails where it is told to."""

import numpy as np

import dpfewshot as dpf
from dpfewshot.errors import BackendError


class Failing(dpf.backends.LogprobBackend):
    """The model, which fails where it is told to."""

    batch_invariant = True

    def __init__(self, model, *, counting=False, answers=False):
        self.model, self.counting, self.answers = model, counting, answers
        self.vocabulary_size, self.end_token_ids = model.vocabulary_size, model.end_token_ids

    def tokenize(self, text):
        if self.counting and text == " suitcase":
            raise BackendError("the tokenizer is away", retryable=True)
        return self.model.tokenize(text)

    def away(self, *_):
        raise BackendError("the server is away", retryable=True)

    def detokenize(self, tokens):
        return self.model.detokenize(tokens)

    def next_token_logprobs(self, prompts, support=None):
        if self.answers:
            return self.model.next_token_logprobs(prompts, support)
        return np.full((len(prompts), self.vocabulary_size), np.nan, dtype=np.float32)

    def open_block(self, *prompts, **settings):
        """The model's own, which evaluates what prompts share once."""
        return (self.model if self.answers else super()).open_block(*prompts, **settings)
