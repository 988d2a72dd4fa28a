"""A stratum's run: it reserves the stratum's plan, releases its demonstrations, and can be continued.

Each disjoint part of a label's units is a stratum of its own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final, TypeVar

from dpfewshot import __version__
from dpfewshot.account.account import Account
from dpfewshot.account.amounts import EventCost
from dpfewshot.account.draws import BEGUN, LOST, THERE, UNCOUNTED, RunKey, Terms
from dpfewshot.account.reservation import Reservation, is_counted
from dpfewshot.certificates import Certificate, line_hash, plan_hash
from dpfewshot.demonstrations import from_line
from dpfewshot.errors import BackendError, BudgetExceeded, LedgerError, RunTakenOver
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.stopping import StopSignal
from dpfewshot.generation.telemetry import Observers
from dpfewshot.generation.token_loop import TextRequest
from dpfewshot.planning.plan import StratumPlan
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.values import Demonstration, PrivacySpend

Result = TypeVar("Result")

_WAIT, _RECORDING, _PATIENCE, _LONGER = 0.5, 10.0, 300.0, 900.0
"""Seconds between two looks at the ledger, and for which words are awaited that another process counts.

The first is for those that it has drawn, the last for those that it took over.
"""

_TIMES: Final = 5
"""How often a text is recorded that others come before."""


@dataclass(eq=False)
class StratumRun:
    """One stratum of a plan while it generates.

    Attributes:
        part: which of the stratum's disjoint parts it draws from.
        labels: one for each demonstration that is planned for it, in order.
        account: charges the budget; None without a guarantee.
        key: names the run to the ledger, for whoever continues it.
        reservation: what is left of its plan; None until it is needed.
        away: whether another process may have it.
        late: what is recorded and was not returned, since its record came late or is another process's.
        lock: held by the thread that generates.
    """

    plan: StratumPlan
    part: int
    labels: tuple[str, ...]
    set_up: SetUp = field(repr=False)
    account: Account | None = field(repr=False)
    observers: Observers = field(repr=False)
    key: RunKey
    reservation: Reservation | None = field(default=None, init=False)
    closed: bool = field(default=False, init=False)
    away: bool = field(default=False, init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    late: list[Demonstration] = field(default_factory=list, init=False, repr=False)

    @property
    def cost(self) -> EventCost | None:
        """What the account is charged for all draws; None if nothing is certified, as without an account."""
        return None if self.account is None else self.set_up.account_cost(self.plan)

    @property
    def spend(self) -> PrivacySpend | None:
        """As results state it."""
        return None if self.cost is None else self.plan.spend

    @property
    def terms(self) -> Terms:
        """What is reserved for it."""
        return Terms(
            self.cost,
            self.set_up.partition.generating(self.plan.scope, self.part),
            draws=self.plan.steps,
            tokens_per_draw=self.plan.draws.tokens_per_draw,
            noise_multiplier=self.plan.noise_multiplier,
            details=self.set_up.account_details(self.plan),
            key=self.key,
        )

    @property
    def draws_left(self) -> int:
        """The draws that later demonstrations may take."""
        return self.plan.steps if self.reservation is None else self.reservation.draws_left

    @property
    def is_counted(self) -> bool:
        """Whether its words are counted: texts from them take no further draw, however many they are."""
        return self.reservation is not None and self.reservation.histogram is not None

    @property
    def texts_left(self) -> int:
        """The draws left; once its words are counted, its planned texts less those that are made."""
        if self.reservation is None or not self.is_counted:
            return self.draws_left
        return len(self.labels) - len(self.reservation.lines)

    @property
    def released(self) -> list[Demonstration]:
        """The demonstrations that it has released, in their order, but for those that others replace."""
        lines = [] if self.reservation is None else self.reservation.lines
        return [from_line(line) for line in lines]

    @property
    def released_ever(self) -> list[Demonstration]:
        """The same with those, in the order in which they were released."""
        return [] if self.reservation is None else [from_line(line) for line in self.reservation.released]

    def keep(self, kept: Counter[str]) -> None:
        """Let others take the place of what it has released and is not kept.

        Args:
            kept: the hashes of the lines to keep, of which those that are found are taken off.
        """
        if self.reservation is None:
            return
        for _ in range(_TIMES):
            self._catch_up(self.reservation)
            others = kept.copy()
            if self.reservation.stand(self._standing(self.reservation, others)):
                break
        kept.clear()
        kept.update(others)

    def _standing(self, reservation: Reservation, kept: Counter[str]) -> list[int]:
        """The slots of which those stand that are kept."""
        lines, slots = reservation.released, [max(one, ~one) for one in reservation.slots]
        others = [place for place in range(len(lines)) if place not in slots]  # which may be kept again
        stand = []
        for place in (*slots, *others):
            digest = line_hash(lines[place])
            if kept[digest]:
                kept[digest] -= 1
                stand.append(place)
            elif place in slots:
                stand.append(~place)
        return stand

    def has_begun(self, label: str) -> bool:
        """Whether a demonstration of this label was interrupted, and waits to be continued."""
        return self.reservation is not None and label in self.reservation.unfinished

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
            self._await_count(stop)
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

    def start_afresh(self, plan: str, run: str) -> None:
        """Drop the reservation, and the lock, which another thread may have held: a child begins anew."""
        self.lock, self.reservation, self.away, self.late = threading.RLock(), None, False, []
        self.key = RunKey(plan, run, self.key.stratum)

    def hand_over(self) -> None:
        """Leave what is not drawn to another process; `take_back` ends that."""
        with self.lock:
            self.away = True
            if self.reservation is not None:
                self.reservation.hand_over()

    def leave(self) -> None:
        """Leave the run to other processes for good, with what it has released and not returned."""
        with self.lock:
            self.hand_over()
            self.reservation, self.away, self.late = None, False, []

    def take_back(self) -> None:
        """Take the stratum's row in the ledger over from whoever has it, if somebody else has it."""
        with self.lock:
            if self.account is None or not self.account.durable:
                return
            found = self.account.run_of(self.key.plan, self.key.run, self.key.stratum)
            if not found:
                self.reservation = None
            for entry in found:  # one
                if self.reservation is None:
                    self.observers.reserved(self.plan.scope, self.spend, self.plan.steps)
                elif not self.away and self.reservation.is_current(entry):
                    break
                [self.reservation] = Reservation.resume(self.account, {entry.number: self.terms})
            self.away = False

    @property
    def joins(self) -> bool:
        """Whether it shares words that another process counted, since one count serves all texts."""
        return self.account is not None and self.account.durable and self.set_up.mechanism.draws_once

    def find(self, stop: StopSignal) -> bool:
        """Join a process that has begun the stratum meanwhile, or take the stratum over; whether one has.

        What it released is late: the caller was not told.
        """
        if not self.joins or not self.join(stop):
            self.take_back()
        self.late += self.released
        return self.reservation is not None

    def join(self, stop: StopSignal) -> bool:
        """Share the words that another process counts for this run, once it has; whether it has the stratum.

        One that has the stratum and does not count it may have died: after minutes this takes it over, but
        for a draw that is made. A run that was itself taken over waits longer, and does not.

        Raises:
            BudgetExceeded: they are lost, or this run is closed.
            LedgerError: nobody counts them.
        """
        fenced, waited, known = self.reservation is not None, 0.0, ("", 0)
        while self.account is not None and not self.is_counted:
            entry = next(iter(self.account.run_of(self.key.plan, self.key.run, self.key.stratum)), None)
            if entry is None or (self.reservation is not None and self.reservation.is_current(entry)):
                break
            self.check_open()
            if (entry.draws.lease, entry.draws.left) != known:  # it goes on
                known, waited = (entry.draws.lease, entry.draws.left), 0.0
            if is_counted(entry):
                [self.reservation] = Reservation.resume(self.account, {entry.number: self.terms}, shared=True)
            elif waited < (_LONGER if fenced else _PATIENCE) and (entry.draws.left or waited < _RECORDING):
                stop.check()
                stop.wait(_WAIT)
                waited += _WAIT
            elif not entry.draws.left:
                raise BudgetExceeded(LOST)
            elif fenced:
                raise LedgerError(UNCOUNTED)
            else:
                self.take_back()
                break
        return self.reservation is not None

    def _await_count(self, stop: StopSignal) -> None:
        """Take what a process records that had drawn when this one took the stratum over."""
        reservation, waited = self.reservation, 0.0
        while self.joins and reservation is not None and waited < _RECORDING:
            if self.is_counted or self.draws_left or self._catch_up(reservation):
                break
            stop.check()
            stop.wait(_WAIT)
            waited += _WAIT

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

    def check_first(self) -> None:
        """Refuse to begin a plan that another process has begun meanwhile, before its cost is refused."""
        if self.key.first and self._is_another_there():
            raise RunTakenOver(BEGUN)

    def advised(self, refusal: BudgetExceeded) -> BudgetExceeded:
        """A refusal that names the run of this plan that another process paid for, if this one has none."""
        account, key = self.account, self.key
        if account is None or not self._is_another_there() or account.run_of(key.plan, key.run):
            return refusal
        return refusal.saying(f"{refusal}. {THERE}")

    def _is_another_there(self) -> bool:
        """Whether the plan's newest run is another one."""
        if self.account is None or not self.account.durable:
            return False
        keys = [entry.draws.key for entry in self.account.run_of(self.key.plan)]
        return any(key is not None and key.run != self.key.run for key in keys)

    def check_open(self) -> None:
        """Refuse further work after `close`."""
        if self.closed:
            raise BudgetExceeded(
                "the synthesizer is closed and generates no more: make a new one, with a budget of its own"
            )

    def _release(
        self, label: str, max_tokens: int, stop: StopSignal, on_token: Callable[[int], object]
    ) -> Demonstration:
        with stop.holding(self.lock), self._reserved(stop) as reservation:
            late = self._after_others(reservation, reservation.finish_release)
            self.late += [] if late is None else [from_line(late)]
            for one in self.late:
                if one.label == label:
                    self.late.remove(one)
                    return one
            if self.is_counted:
                self._catch_up(reservation)
            set_up, released = self.set_up, reservation.unfinished.setdefault(label, [])
            if not self.is_counted:
                max_tokens = self._affordable(max_tokens, len(released))
            earlier = [str(line["text"]) for line in reservation.released if line["label"] == label]
            number = self.part + reservation.turn(label) * set_up.plan.settings.disjoint_parts
            subject = set_up.prompts(label, number)
            if len(released) < max_tokens and not set_up.loop.ended(released):
                request = TextRequest(
                    units=set_up.bodies(self.plan, self.part),
                    sampler=set_up.sampler(self.plan),
                    release=set_up.release(self.plan),
                    reservation=reservation,
                    prompts=set_up.writer.for_label(label),
                    max_tokens=max_tokens,
                    topic=set_up.topic(label, number),
                    released=released,
                    earlier=earlier,
                    subject=subject,
                    fits=partial(set_up.fits, label),
                    stop=stop,
                )
                with closing(set_up.loop.tokens(request)) as tokens:
                    for token in tokens:
                        on_token(token)
            return self._recorded(reservation, label, set_up.loop.text(subject, released), released)

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
        self, reservation: Reservation, label: str, text: str, released: Sequence[int]
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
            token_count=len(released),
            certified=cost is not None,
            spent=self.spend,
            relation=self.set_up.plan.relation,
            mechanism=self.set_up.mechanism.name,
            fields=self.set_up.task.layout.fields_of(text),
            certificate=certificate,
            finished=self.set_up.loop.ended(released),
        )
        self._after_others(reservation, partial(reservation.release, made.as_line()))
        return made

    def _after_others(self, reservation: Reservation, record: Callable[[], Result]) -> Result:
        """Record a release; again, where other processes released from the same words meanwhile."""
        for _ in range(_TIMES):
            try:
                return record()
            except RunTakenOver:
                if not self._catch_up(reservation):
                    raise
        return record()

    def _catch_up(self, reservation: Reservation) -> bool:
        """Add what other processes released from the same words; whether there is any."""
        if self.account is None or not self.joins:
            return False
        found = self.account.run_of(self.key.plan, self.key.run, self.key.stratum)
        return any(reservation.catch_up(entry) for entry in found)

    @contextmanager
    def _reserved(self, stop: StopSignal) -> Iterator[Reservation]:
        """The reservation. Unless a draw is asked for, it goes back to the account at the end."""
        self.check_open()  # it may have been closed while this waited
        reservation = self.reservation or self._reserve(stop)
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

    def _reserve(self, stop: StopSignal) -> Reservation:
        """Reserve the plan. If it cannot be recorded, what was reserved is given back."""
        try:
            reservation = Reservation.make(self.account, self.terms)
        except (LedgerError, BudgetExceeded) as error:
            found = self.join(stop) if self.joins else self.find(stop)  # perhaps its own, the answer lost
            if found and self.reservation is not None:
                return self.reservation
            self.check_first()
            if isinstance(error, BudgetExceeded):
                raise self.advised(error) from None
            raise
        self.reservation = reservation  # before observers are told: one may close the synthesizer
        try:
            self.observers.reserved(self.plan.scope, self.spend, self.plan.steps)
        except BaseException:
            self.reservation = None
            with suppress(LedgerError):
                reservation.close()  # nothing else refers to it
            raise
        return reservation


def without(labels: Sequence[str], made: Iterable[Demonstration]) -> tuple[str, ...]:
    """The labels of what is not made yet."""
    return tuple((Counter(labels) - Counter(one.label for one in made)).elements())
