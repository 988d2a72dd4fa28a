"""A language model behind a server: vLLM or llama-server."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.backends.servers.client import Client, Gate
from dpfewshot.backends.servers.probe import verify as verify_all
from dpfewshot.backends.servers.replicas import Replicas, check_addresses
from dpfewshot.backends.servers.server import Server
from dpfewshot.errors import BackendError, BackendNotBatchInvariant
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.runtime.redaction import redacts_errors

_CLOSED = "this OpenAICompatible is closed"


class OpenAICompatible(LogprobBackend):
    """A model on a server that runs on a trusted machine.

    The constructor detects the kind of server. It checks that log-probabilities are the model's own (whole,
    normalised, before penalties and temperature) and whether a prompt has the same bits alone, among others
    and again. Prompts are sent as token ids, and answers are keyed by token id. Every prompt is sent,
    whatever else was drawn; a prompt at fault gives a row of NaN. A backend works in any thread, within a
    running event loop, and in a forked child, which connects and checks again: a server that was
    batch-invariant for the parent but is not for the child is refused there.

    Args:
        base_url: the base of the OpenAI-compatible endpoints, such as "http://localhost:8000/v1". A list of
            addresses is a server with replicas: the same model, started alike, at each. A prompt goes to the
            replica that a hash of its token ids names. If a replica fails, the call fails for all prompts.
        model: the model's name on the server; llama-server ignores it and serves its only model.
        api_key: sent as a bearer token; appears in no message, log or representation.
        dialect: "auto", "llama-server" or "vllm".
        concurrency: the most requests in flight to each replica, at least 1; lowered to what the replica says
            it computes at once.
        timeout: seconds during which a request is retried; an answer is waited for five times as long. It
            never applies to a whole draw. Set it well above the time of the longest prompt alone.
        proxy: the address of an HTTP proxy. It sees prompts and key unless the server uses https. None
            connects directly: environment variables are ignored and redirects are not followed.
        ca_bundle: a file or folder of PEM certificates to trust for https, in place of certifi's.
        verify: whether to run the checks. Without them `batch_invariant` is False.

    Attributes:
        batch_invariant: whether the checks passed, in this process.
        context_tokens: the longest prompt with the token that follows it; None if the server does not say.
        model_identity: what the server calls its model, behind "claimed:"; of a path, the name of the file.

    Raises:
        MissingExtra: `httpcore2` is not installed.
        BackendError: the server does not answer (retryable), or cannot serve as a backend; the message says
            what is missing. Or replicas differ in kind, model, vocabulary, context, or by more than 0.2 in
            total variation.
    """

    @redacts_errors(None)
    def __init__(
        self,
        base_url: str | Sequence[str],
        model: str,
        api_key: str | None = None,
        *,
        dialect: str = "auto",
        concurrency: int = 8,
        timeout: float = 120.0,
        proxy: str | None = None,
        ca_bundle: str | None = None,
        verify: bool = True,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1 or not timeout > 0:
            raise BackendError(f"concurrency={concurrency}: at least 1; timeout={timeout}: above 0")
        base_urls: list[Any] = [*base_url] if isinstance(base_url, list | tuple) else [base_url]
        check_addresses(base_urls)

        def servers() -> list[Server]:
            gates: list[Gate] = []
            client = partial(Client, timeout=timeout, api_key=api_key, proxy=proxy, ca_bundle=ca_bundle)
            clients = [client(url, gate=Gate(concurrency, gates)) for url in base_urls]
            return [Server(each, model, dialect) for each in clients]

        self._servers_of_a_process = servers  # no attribute holds the key: no representation shows it
        self._model = model
        self._verify = verify
        self._closed = False
        self._must_be_invariant = False
        self.after_fork()
        found = self._here().first.dialect
        start_afresh_in_children(self)
        self._must_be_invariant = self.batch_invariant
        self.vocabulary_size = found.vocabulary_size
        self.end_token_ids = found.end_token_ids
        self.context_tokens = found.context_tokens

    def __repr__(self) -> str:
        connected = "_replicas" in vars(self) and self._replicas is not None
        return f"OpenAICompatible({self.describe()!r})" if connected else "OpenAICompatible(not connected)"

    def describe(self) -> str:
        """Return the server, its dialect, and whether it is batch-invariant; if not, how to start it."""
        replicas = self._replicas or self._here()
        count, dialect = len(replicas.servers), replicas.first.dialect
        if self.batch_invariant:
            verdict = "batch-invariant"
        elif self._verify:
            where = f" at {', '.join(self._varying)}" if count > 1 else ""
            verdict = f"not batch-invariant{where}: {dialect.advice}"
        else:
            verdict = "not verified"
        several = f"{count} replicas of " if count > 1 else ""
        hosts = ", ".join(server.client.host for server in replicas.servers)
        return f"{several}{dialect.name} at {hosts}, {verdict}"

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`: nothing is added, and special tokens stay text."""
        replicas = self._here()
        return replicas.run(replicas.first.tokenize(text))

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`.

        Raises:
            BackendError: a token id is not in 0 to V-1, or the server fails.
        """
        self._check_tokens(tokens)
        if len(tokens) == 1:
            return self.token_texts()[tokens[0]]
        replicas = self._here()
        return replicas.run(replicas.first.detokenize([int(token) for token in tokens]))

    def token_texts(self) -> list[str]:
        """Return the text of each token alone, in order. The server is asked once."""
        replicas = self._here()
        return self.known("texts", lambda: replicas.run(replicas.first.dialect.token_texts()))

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation of public texts in the model's template; see `LogprobBackend.chat_text`.

        Raises:
            BackendError: the server is not llama-server, or its model has no template that can be used.
        """
        replicas = self._here()
        return replicas.run(replicas.first.dialect.chat_text(contents))

    def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text; see `LogprobBackend.chat_tokens`."""
        replicas = self._here()
        return replicas.run(replicas.first.dialect.chat_tokens(text))

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token; see `LogprobBackend`.

        A prompt that is empty, is longer than the context, or holds an invalid token id gives a row of NaN
        and is not sent. So does a prompt that the server rejects, or does not answer when asked alone.
        """
        if support is not None:
            self._check_tokens(support)
        replicas = self._here()
        width = self.vocabulary_size if support is None else len(support)
        rows = np.full((len(prompts), width), np.nan, dtype=np.float32)
        usable = [place for place, prompt in enumerate(prompts) if self._is_usable(prompt)]
        if width and (usable or len(replicas.servers) > 1):  # a dead replica fails an empty draw too
            wanted = None if support is None else [int(token) for token in support]
            sent = [[*self._bos, *map(int, prompts[place])] for place in usable]
            rows[usable] = replicas.run(replicas.rows(sent, wanted))
        return rows

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._closed = True
        self._disconnect()

    def after_fork(self) -> None:
        """Begin without connections and with new locks: the old ones are a parent's threads'."""
        self._connecting = threading.Lock()
        if "_disconnect" in vars(self):
            self._parents = self._disconnect.detach()  # kept: their event loop cannot be closed here
        self._replicas: Replicas | None = None

    def _here(self) -> Replicas:
        """Return this process's connections, which are made on first use and checked."""
        if self._replicas is None and not self._closed:
            with self._connecting:
                if self._replicas is None:  # no other thread did meanwhile
                    self._connect()
        if self._closed or self._replicas is None:
            raise BackendError(_CLOSED)
        return self._replicas

    def _connect(self) -> None:
        """Connect and verify; other threads see the connections only afterwards."""
        replicas = Replicas(self._servers_of_a_process())
        disconnect = weakref.finalize(self, replicas.close)
        with ExitStack() as on_failure:
            on_failure.callback(disconnect)
            replicas.run(replicas.open())
            self._varying = replicas.run(verify_all(replicas)) if self._verify else []
            self.batch_invariant = self._verify and not self._varying
            if self._must_be_invariant and self._varying:
                raise BackendNotBatchInvariant(
                    f"the server at {', '.join(self._varying)} was batch-invariant before the fork and no "
                    "longer is"
                )
            bos = replicas.first.dialect.bos
            self._bos = [] if bos is None else [bos]
            told = [str(part) for part in replicas.first.identity or () if part]
            named = ", ".join(told) or self._model
            self.model_identity = f"claimed:{named.rpartition('/')[2] if named.startswith('/') else named}"
            self._disconnect = disconnect  # before the look: `close` marks first, and then disconnects
            if self._closed:
                raise BackendError(_CLOSED)
            on_failure.pop_all()
        self._replicas = replicas  # last: threads that see it use the rest

    def _is_usable(self, prompt: Tokens) -> bool:
        length = len(self._bos) + len(prompt)
        fits = self.context_tokens is None or length < self.context_tokens
        return length > 0 and fits and all(0 <= token < self.vocabulary_size for token in prompt)

    def _check_tokens(self, tokens: Tokens) -> None:
        if not all(0 <= token < self.vocabulary_size for token in tokens):
            raise BackendError(f"a token of the support or text is not in 0 to {self.vocabulary_size - 1}")
