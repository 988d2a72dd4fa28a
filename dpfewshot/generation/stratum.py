"""A stratum's run: it releases the demonstrations of one stratum of a plan, and can be continued.

Each disjoint part of a label's units is a stratum of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial

from dpfewshot import __version__
from dpfewshot.account.reservation import Reservation
from dpfewshot.certificates import Certificate, plan_hash
from dpfewshot.demonstrations import from_line
from dpfewshot.errors import BackendError, BudgetExceeded
from dpfewshot.generation.row import StratumRow
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.token_loop import TextRequest
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.runtime.stopping import StopSignal
from dpfewshot.values import Demonstration


class StratumRun(StratumRow):
    """One stratum of a plan while it generates."""

    @property
    def texts_left(self) -> int:
        """The draws left; once its words are counted, its planned texts less those that are made."""
        held = self.reservation
        if held is None or held.histogram is None:
            return self.draws_left
        return len(self.labels) - len(held.lines)

    def has_begun(self, label: str) -> bool:
        """Whether a demonstration of this label was interrupted, and waits to be continued."""
        return (held := self.reservation) is not None and label in held.unfinished

    @redacts_errors(BackendError, "generation")
    def release(
        self,
        label: str,
        max_tokens: int,
        stop: StopSignal,
        on_token: Callable[[int], object] = lambda _token: None,
    ) -> Demonstration:
        """Release one demonstration; one that was interrupted is continued.

        Args:
            max_tokens: of the whole demonstration.
            stop: checked between two tokens.
            on_token: called with each token that is drawn.

        Raises:
            BudgetExceeded, BackendError, LedgerError: as `Synthesizer.generate`.
            InvalidRecords: the file of indexed records has changed. What was drawn stays charged.
            RunTakenOver: another process resumed the run.
            Stopped: the request was cancelled.
        """
        return self.observers.generation(label, partial(self._release, label, max_tokens, stop, on_token))

    def make(
        self,
        label: str,
        others: Sequence[str],
        stop: StopSignal,
        on_token: Callable[[int], object] = lambda _token: None,
    ) -> Demonstration | None:
        """`release` one of the planned length, as far as the draws suffice; None if too few are left.

        An interrupted one has the draws that the others, still to be made, leave to it. If they leave none
        and it has no token yet, it takes those of the next one, so that the last one is lost.
        """
        with stop.holding(self.lock):
            self.check_open()
            if self.reservation is None:
                self.find(stop)
            self.await_count(stop)
            settings, left = self.set_up.plan.settings, self.draws_left
            each, tokens = settings.draws_per_demonstration, settings.max_tokens
            reservation, others = self.reservation, without(others, self.late)
            begun = reservation.unfinished.get(label, []) if reservation else []
            own = max(0, left - len(others) * each)
            if self.is_counted or label in (one.label for one in self.late):  # it costs no draw
                pass
            elif begun or 0 < own < each:
                tokens = min(tokens, len(begun) + own * settings.tokens_per_draw)
            elif left < each:
                return None
            try:
                return self.release(label, tokens, stop, on_token) if tokens else None
            except BudgetExceeded:
                if reservation is None and self.reservation is not None:  # another process had begun it
                    return self.make(label, others, stop, on_token)
                if self.draws_left or self.is_counted:
                    raise
                return None

    def make_all(self, labels: Sequence[str], stop: StopSignal, set_up: SetUp) -> Iterator[Demonstration]:
        """`make` one of each of these labels with a set-up like its own, of a worker's backend."""
        for position, label in enumerate(labels):
            with stop.holding(self.lock):
                own, self.set_up = self.set_up, set_up
                try:
                    one = self.make(label, labels[position + 1 :], stop)
                finally:
                    self.set_up = own
            if one is not None:
                yield one

    def close(self) -> None:
        """Draw no more. Give back what never drew; settle what is complete or in memory; leave the rest open.

        A ledger counts what is left open as it counts what is settled, and a later run may resume it.

        Raises:
            LedgerError: it could not be given back and stays spent, until this is called again.
        """
        self.closed = True
        if self.reservation is None:
            return
        complete = not without(self.labels, self.released)
        durable = self.account is not None and self.account.durable
        if durable and self.reservation.asked and not complete:
            self.reservation.hand_over()
        else:
            self.reservation.close()

    def _release(
        self, label: str, max_tokens: int, stop: StopSignal, on_token: Callable[[int], object]
    ) -> Demonstration:
        with stop.holding(self.lock), self._reserved(stop) as reservation:
            late = self.after_others(reservation, reservation.finish_release)
            self.late += [] if late is None else [from_line(late)]
            for one in self.late:
                if one.label == label:
                    self.late.remove(one)
                    return one
            if self.is_counted:
                self.catch_up(reservation)
            loop, tokens = self.set_up.loop, reservation.unfinished.setdefault(label, [])
            if not self.is_counted:
                max_tokens = self._affordable(max_tokens, len(tokens))
            number = self.part + reservation.turn(label) * self.set_up.plan.settings.disjoint_parts
            subject = self.set_up.prompts(label, number)
            if len(tokens) < max_tokens and not loop.ended(tokens):
                request = TextRequest(
                    units=self.set_up.bodies(self.plan, self.part),
                    sampler=self.set_up.sampler(self.plan),
                    release=self.set_up.release(self.plan),
                    reservation=reservation,
                    prompts=self.set_up.writer.for_label(label),
                    max_tokens=max_tokens,
                    topic=self.set_up.topic(label, number),
                    released=tokens,
                    earlier=self._earlier(reservation, label),
                    subject=subject,
                    fits=partial(self.set_up.label_check.fits, label),
                    stop=stop,
                )
                with closing(loop.tokens(request)) as drawn:
                    for token in drawn:
                        on_token(token)
            return self._recorded(reservation, label, loop.text(subject, tokens), tokens)

    def _earlier(self, reservation: Reservation, label: str) -> list[str]:
        """The texts from which a further one differs: of its label, or all that one count serves."""
        serves_all = self.is_counted and self.plan.scope is None
        return [str(one["text"]) for one in reservation.released if serves_all or one["label"] == label]

    def _affordable(self, max_tokens: int, released: int) -> int:
        """How many tokens a demonstration may have of which some are released.

        Raises:
            BudgetExceeded: no draws are left for that many.
        """
        most = released + self.draws_left * self.set_up.plan.settings.tokens_per_draw
        if released:  # an interruption cost draws: it ends with those that are left
            return min(max_tokens, most)
        if not most:
            raise BudgetExceeded("no tokens remain in this plan: a further plan needs further budget")
        if most < max_tokens:
            raise BudgetExceeded(f"only {most} tokens remain in this plan; max_tokens={most} would still fit")
        return max_tokens

    def _recorded(
        self, reservation: Reservation, label: str, text: str, tokens: Sequence[int]
    ) -> Demonstration:
        """The demonstration of these tokens, once the ledger has recorded it."""
        cost, certificate = self.cost, None
        if cost is not None and self.account is not None:
            certificate = Certificate(
                plan=plan_hash(*cost.amount, self.set_up.account_details(self.plan)),
                unit=self.account.unit,
                version=__version__,
                dataset=self.account.dataset,
                reservation=reservation.identifier,
                **asdict(self.set_up.written_by),
                run=self.key.run,
            )
        made = Demonstration(
            text=text,
            label=label,
            token_count=len(tokens),
            certified=cost is not None,
            spent=self.spend,
            relation=self.set_up.plan.relation,
            mechanism=self.set_up.mechanism.name,
            fields=self.set_up.task.layout.fields_of(text),
            certificate=certificate,
            finished=self.set_up.loop.ended(tokens),
        )
        self.after_others(reservation, partial(reservation.release, made.as_line()))
        return made

    @contextmanager
    def _reserved(self, stop: StopSignal) -> Iterator[Reservation]:
        """The reservation. Unless a draw is asked for, it goes back to the account at the end."""
        self.check_open()  # it may have been closed while this waited
        reservation = self.reservation or self.reserve(stop)
        self.check_open()  # an observer may have closed it
        try:
            yield reservation
        finally:
            for label in [label for label, tokens in reservation.unfinished.items() if not tokens]:
                del reservation.unfinished[label]
            if not reservation.asked:
                reservation.close()  # if that fails, it is kept
                self.reservation = None
            elif self.texts_left <= 0 and not reservation.unfinished:
                reservation.close()


def without(labels: Sequence[str], made: Iterable[Demonstration]) -> tuple[str, ...]:
    """The labels of what is not made yet."""
    return tuple((Counter(labels) - Counter(one.label for one in made)).elements())
