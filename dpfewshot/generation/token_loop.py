"""Tang et al., Algorithm 1: token by token, each from a charged draw, until one ends the demonstration."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, fields
from itertools import product

from dpfewshot.account.reservation import Reservation
from dpfewshot.backends.protocol import answered, closing_block, failing_as_backend, states_invariance
from dpfewshot.errors import BackendNotBatchInvariant
from dpfewshot.generation.units import Bodies
from dpfewshot.mechanisms import Release
from dpfewshot.sampling import Sampler
from dpfewshot.writing.public_loop import PublicLoop, answer_without_records
from dpfewshot.writing.request import PublicRequest


@dataclass(frozen=True, kw_only=True)
class TextRequest(PublicRequest):
    """One text to write from private records.

    Attributes:
        release: the started mechanism; nothing else turns private numbers into something released.
        reservation: charges each draw, and gives its permit.
        released: the tokens of an interrupted text, which none of them ends; else empty. Takes each new one.
    """

    units: Bodies
    sampler: Sampler
    release: Release
    reservation: Reservation
    released: list[int] = field(default_factory=list)

    @property
    def public(self) -> PublicRequest:
        """The request without what is private."""
        return PublicRequest(**{one.name: getattr(self, one.name) for one in fields(PublicRequest)})


@dataclass(frozen=True)
class TokenLoop(PublicLoop):
    """Generates with one backend. The permit of a draw says how many tokens share it.

    Attributes:
        certified: whether each draw needs a backend that states batch invariance.
    """

    certified: bool = False

    def tokens(self, request: TextRequest) -> Generator[int]:
        """Release the tokens of one demonstration, with the one that ends it if there is one.

        Each token is appended to `released` and then yielded; nothing more is drawn until it is asked for.
        """
        units, sampler, release = request.units, request.sampler, request.release
        prompts, max_tokens, released = request.prompts, request.max_tokens, request.released
        draft = self.draft(released, prompts.further, request.earlier)
        suffix = [*prompts.public_suffix, *draft.context]
        left = max_tokens - len(released)
        left += draft.written_left(left)  # names are appended and never drawn, and so is what a schema forces
        with closing_block(self.backend, prompts.prefix, [suffix], left, public=True) as public:
            self._prepare(max_tokens - len(released), request.reservation.tokens_per_draw)
            while len(released) < max_tokens:
                public_row = answer_without_records(public)  # finds a dead server before anything is charged
                units.check()  # finds a changed file, likewise
                self._check_invariance()
                request.stop.check()
                permit = request.reservation.draw()  # before it draws
                subsets = units.of(sampler.draw(units.sizes))
                suffixes = [each for subset in subsets if (each := prompts.suffix(subset, draft.context))]
                length = min(permit.tokens, max_tokens - len(released))
                kept = length + draft.written_left(length) if length > 1 else 1
                with closing_block(self.backend, prompts.prefix, suffixes, kept) as private:
                    for step in range(length):
                        if step > 0:
                            public_row = answer_without_records(public)
                        support = draft.support(release.support, public_row, max_tokens - len(released))
                        logprobs = answered(private, len(suffixes), support)
                        winner = release.token(logprobs, public_row[support], permit)
                        if winner is None:
                            return
                        released.append(support[winner])
                        following = draft.add(support[winner])
                        yield support[winner]
                        request.stop.check()
                        if draft.finished:
                            return
                        continued = [public, private] if step + 1 < length else [public]
                        for block, token in product(continued, following):
                            block.append(token)

    def _prepare(self, tokens: int, per_draw: int) -> None:
        """Prepare for the draws that so many tokens need, of which the last may have fewer."""
        with failing_as_backend():
            for length in {min(per_draw, tokens), tokens % per_draw} - {0}:
                self.backend.prepare(length)

    def _check_invariance(self) -> None:
        if self.certified and not states_invariance(self.backend):
            raise BackendNotBatchInvariant(
                "the backend no longer states that a prompt's answer is independent of its neighbours: "
                "nothing is drawn"
            )
