"""SGLang: `/generate` takes token ids and returns the log-probabilities of the ids asked for.

Written from SGLang's public documentation and never run against an SGLang server: docs/decisions/servers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.dialect import field
from dpfewshot.backends.servers.faults import Malformed
from dpfewshot.backends.servers.served_tokenizer import WithServedTokenizer
from dpfewshot.backends.servers.vllm import NEUTRAL
from dpfewshot.errors import BackendError


class SGLang(WithServedTokenizer):
    """SGLang.

    `token_ids_logprob` names the tokens for each prompt of a request. The vocabulary is what the server's
    tokenizer can spell: no page gives the model's, and an id beyond it would crash the server.
    """

    name: ClassVar[str] = "sglang"
    advice: ClassVar[str] = "start SGLang with --enable-deterministic-inference --disable-radix-cache"
    distorted: ClassVar[Mapping[str, Any]] = {"temperature": 0.5}
    prompts_per_request: ClassVar[int] = 16
    text_of_answer: ClassVar[str] = "text"

    async def connect(self) -> None:
        """Read the tokenizer, the vocabulary and the context."""
        await self.connect_tokenizer()
        self.vocabulary_size = await self.written_vocabulary()
        listed = await self._transport.get(f"{self._transport.base}/models")
        lengths = [card.get("max_model_len") for card in (listed or {}).get("data", [])]
        if not lengths:
            raise BackendError("SGLang lists no model")
        self.context_tokens = lengths[0]

    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Request the support by its ids, or every id."""
        wanted = list(range(self.vocabulary_size) if support is None or not self.picks else support)
        return f"{self._transport.root}/generate", {
            "input_ids": [list(prompt) for prompt in prompts],
            "sampling_params": {**NEUTRAL, **settings, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": -1,
            "token_ids_logprob": [wanted for _ in prompts],
            "return_text_in_logprobs": False,
        }

    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """Read one answer per prompt, in order, each for the whole prompt."""
        if not isinstance(answer, list) or len(answer) != len(prompts):
            raise Malformed
        rows = []
        for each, prompt in zip(answer, prompts, strict=True):
            if field(each, "meta_info", "prompt_tokens") != len(prompt):
                raise Malformed
            steps = field(each, "meta_info", "output_token_ids_logprobs")
            if not isinstance(steps, list) or len(steps) != 1:
                raise Malformed
            rows.append(self.row(((field(pair, 1), field(pair, 0)) for pair in steps[0]), support))
        return rows

    def identity_of(self, answer: Any) -> tuple[Any, ...]:
        """Return the version of the weights, which SGLang can replace while it runs."""
        return tuple({str(each["meta_info"].get("weight_version")) for each in answer})
