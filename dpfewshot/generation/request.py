"""Options for generating one demonstration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpfewshot.generation.cancellation import StopSignal

if TYPE_CHECKING:
    from dpfewshot.generation.workers import Workers


@dataclass(frozen=True, repr=False)
class GenerationRequest:
    """What to generate, how long, and whom to call.

    Attributes:
        label: a planned one.
        max_tokens: of the whole demonstration, `prior_tokens` included.
        prior_tokens: released by an interrupted run: fewer than `max_tokens`, none of which ends it.
        on_token: records each further token. It does not check `stop`, so that all tokens of a worker's draw
            are recorded.
        stop: checked before each draw, and between two tokens that the caller's thread releases.
        checkpointed: whether the run that the checkpoint follows makes the request.
        workers: make the draws; None: the caller's thread does.
        others: labels of the run's demonstrations to come, which keep their draws if a worker dies.
    """

    label: str
    max_tokens: int
    prior_tokens: Sequence[int] = ()
    on_token: Callable[[int], None] = lambda _token: None
    stop: StopSignal = field(default_factory=StopSignal)
    checkpointed: bool = False
    workers: Workers | None = None
    others: Sequence[str] = ()

    def released(self, token: int) -> None:
        """Record a token of the caller's thread, then check for a stop.

        Raises:
            Stopped: the request was cancelled.
        """
        self.on_token(token)
        self.stop.check()
