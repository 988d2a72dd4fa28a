"""What to do about a failed check, by backend."""

from __future__ import annotations

from collections.abc import Mapping

from dpfewshot.cli.backends import HUGGING_FACE, LLAMA_CPP

_ONE_BY_ONE = "run with --decode-batch 1 and check again: dpfewshot doctor --decode-batch 1"

_SERVERS: Mapping[str, str] = {
    "llama-server": (
        "start it with one slot, without prompt cache and flash attention: "
        "llama-server -m MODEL.gguf --parallel 1 --no-cache-prompt --flash-attn off"
    ),
    "vllm": (
        "start it with one sequence at a time, without prefix caching: "
        "vllm serve MODEL --max-logprobs -1 --max-num-seqs 1 --no-enable-prefix-caching"
    ),
}
"""By a word in the backend's description of itself."""

_BY_CHECK: Mapping[str, str] = {
    "claim": "set batch_invariant only if every check passes; until then no epsilon holds",
    "sample prompts": "tokenize any plain ASCII text without raising",
    "text": "detokenize must return what tokenize got: no clean-up of spaces, no special tokens added",
    "special tokens": "turn off the parsing of special tokens in tokenize",
    "vocabulary": "turn off the parsing of special tokens in tokenize, and name end tokens from 0 to V-1",
    "end tokens": "end_token_ids must be tokens that end the model's text, and never occur inside one",
    "shapes": "return float32 of shape (prompts, support or V), in the support's order",
    "support": "take the log-softmax over the whole vocabulary first, then the support's columns",
    "normalisation": "take the log-softmax over the whole vocabulary, before temperature, bias and penalties",
    "empty prompt": "answer an empty prompt with a row of NaN, or like any other prompt",
    "long prompt": "answer a prompt of more than context_tokens with a row of NaN; never cut it, never raise",
    "prefix reuse": "do not use what an earlier call left behind",
    "concurrency": "hold a lock around the model",
    "load": "answer each prompt as if it were alone, however long it waits; a queue or quota fails them all",
    "closing": "let close() be called twice, and raise BackendError afterwards",
}

_ANY = "evaluate every prompt in its own call; otherwise no epsilon holds"


def remedy(backend: str, described: str, check: str, *, about_invariance: bool) -> str:
    """Advice in one line.

    Args:
        backend: the value of --backend.
        described: the backend's description of itself.
        check: the check that failed.
        about_invariance: whether answers depend on other prompts.
    """
    if about_invariance:
        for word, recipe in _SERVERS.items():
            if word in described.lower():
                return recipe
        if backend in {LLAMA_CPP, HUGGING_FACE} and check in {"claim", "block invariance"}:
            return _ONE_BY_ONE
    return _BY_CHECK.get(check, _ANY)
