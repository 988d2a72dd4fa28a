"""A plan's reservation: charges each draw before it is made, and keeps what the plan has released.

Without an account nothing is charged.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.draws import NO_PROGRESS, USED_UP, DrawCounts, Terms, new_lease
from dpfewshot.account.history import OPEN, VERIFY
from dpfewshot.account.memory import Entry
from dpfewshot.account.permit import Permit
from dpfewshot.certificates import line_hash
from dpfewshot.errors import BudgetExceeded, LedgerError, RunTakenOver
from dpfewshot.runtime.forking import start_afresh_in_children


class Reservation:
    """A number of draws reserved from an account, whose noise is fixed beforehand, and what they released.

    One draw of records serves up to `tokens_per_draw` tokens; those left over are forfeited. Draws that are
    left serve further demonstrations of the same plan (docs/proofs/composition.md). Nothing comes back to the
    account after the first draw.

    The commit that charges a draw also records the tokens released before. The draw of a process that dies
    counts as made, and its tokens are lost (docs/proofs/resuming.md).

    Args:
        draws: those that are left; a resumed run has the progress of the one before.
        resumed: whether an earlier run may have drawn, so that nothing comes back.

    Attributes:
        entry: the account's number for the plan; 0 without an account.
        identifier: the random one that certificates name; None where no ledger keeps one.
        released: the lines of the demonstrations that are released. Public.
        slots: which of them stand, in order: a place in `released`, or ~place where another is to stand.
        unfinished: released tokens of demonstrations in progress, by their label. Whoever draws appends.
        histogram: what the one draw of a word histogram released, for all texts; None before it. Public.
        asked: whether a charge was requested from the account. It may have charged and lost the answer, so
            from then on the reservation is kept.
    """

    def __init__(
        self,
        account: Account | None,
        terms: Terms,
        reserved: Reserved,
        draws: DrawCounts,
        *,
        resumed: bool = False,
    ) -> None:
        self._account = account
        self._durable = account is not None and account.durable
        self._terms = terms
        self.entry, self.identifier = reserved
        self._lease = draws.lease
        self._writer = new_lease()  # tells this release of a text from another process's of the same text
        self._left = draws.left
        self._recorded: str  # as the account has it
        self._unrecorded: Mapping[str, object] | None  # or recorded, its answer lost
        self._late: Mapping[str, object] | None  # recorded, and not returned
        self.released: list[Mapping[str, object]]
        self.slots: list[int]
        self.unfinished: dict[str, list[int]]
        self.histogram: Mapping[str, Any] | None
        self._take(draws.progress)
        self.asked = self._charged = resumed
        self._closed = self._inherited = False
        self._lock = threading.Lock()
        start_afresh_in_children(self)

    @classmethod
    def make(cls, account: Account | None, terms: Terms) -> Reservation:
        """Reserve a whole plan, as `Account.reserve` does."""
        draws = DrawCounts(terms.draws, new_lease(), key=terms.key, population=terms.population)
        if account is None or terms.cost is None:
            return cls(None, terms, Reserved(0, None), draws)
        try:
            return cls(account, terms, account.reserve(terms.scope, terms.cost, terms.details, draws), draws)
        except BaseException:  # an interrupt or a lost answer may come after the commit
            with suppress(LedgerError):
                account.withdraw(draws.lease)
            raise

    @classmethod
    def resume(cls, account: Account, run: Mapping[int, Terms], *, shared: bool = False) -> list[Reservation]:
        """Take over, all at once, what an earlier run reserved and drew from (docs/proofs/resuming.md).

        Args:
            run: the account's numbers of its entries, and what was reserved for each.
            shared: take over no draw: whoever has it goes on, and both release from what is drawn.
        """
        found = zip(run.values(), account.resume(run, shared=shared), strict=True)
        return [cls(account, terms, *each, resumed=True) for terms, each in found]

    def after_fork(self) -> None:
        """Leave everything to the parent: it makes the draws, and settles the entry or gives it back."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._inherited = self._closed = True

    def is_current(self, entry: Entry) -> bool:
        """Whether nobody has resumed the entry since, nor released from it where others share its lease."""
        alone = entry.state in OPEN and not is_counted(entry)
        return entry.draws.lease == self._lease and (alone or entry.draws.progress == self._recorded)

    def catch_up(self, entry: Entry) -> bool:
        """Add what others recorded of the same words; false if there is nothing, or its own slots are not."""
        with self._lock:
            recorded, pending = entry.draws.progress, self._unrecorded
            if recorded == self._recorded or not (entry.draws.lease == self._lease and is_counted(entry)):
                return False
            if self.histogram is not None and _slots(json.loads(self._recorded or NO_PROGRESS)) != self.slots:
                return False
            known = len(self.released)
            self._take(recorded)
            if pending in self.released[known:]:  # its answer was lost
                self._late = pending
            else:
                self._unrecorded = pending
            return True

    def _take(self, recorded: str) -> None:
        """Take over the progress that the account has."""
        progress = json.loads(recorded or NO_PROGRESS)
        self._recorded = recorded
        self._unrecorded = self._late = None
        self.released = progress["released"]
        self.slots = _slots(progress)
        _check_slots(self.slots, len(self.released), self.entry)
        self.unfinished = progress["unfinished"]
        self.histogram = progress.get("histogram")

    @property
    def lines(self) -> list[Mapping[str, object]]:
        """What is released and stands."""
        return [self.released[place] for place in self.slots if place >= 0]

    def turn(self, label: object) -> int:
        """The number of a label's next text among those that stand: of the first to replace, or a new one."""
        slots = [slot for slot in self.slots if self.released[place_of(slot)]["label"] == label]
        return next((turn for turn, slot in enumerate(slots) if slot < 0), len(slots))

    def _filled(self, label: object) -> list[int]:
        """The slots with one more line, in the first of its label that is to be replaced, or at the end."""
        slots = list(self.slots)
        open_ones = (at for at, one in enumerate(slots) if one < 0 and self.released[~one]["label"] == label)
        at = next(open_ones, len(slots))
        slots[at : at + 1] = [len(self.released)]
        return slots

    @property
    def tokens_per_draw(self) -> int:
        """R, the tokens that share a draw."""
        return self._terms.tokens_per_draw

    @property
    def draws_left(self) -> int:
        """The draws that are left."""
        return 0 if self._closed else self._left

    def charge(self) -> None:
        """Charge the plan and make no draw yet: when it is charged tells nothing of records that follow.

        What fails before the draw costs none: it may be requested later. Errors are those of `draw`.
        """
        with self._lock:
            self._ask()
            if self._account is not None:
                self._account.charge(self.entry, self._lease)
            self._charged = True

    def draw(self) -> Permit:
        """Charge one draw, record what is released by now, and return the permit for the draw's tokens.

        Raises:
            BudgetExceeded: no draw is left, or this is a forked child's copy.
            RunTakenOver: another run resumed it.
            LedgerError: the account could not record the charge, or its answer was lost. Nothing may be
                drawn; the draw may be requested again, since the account keeps its own count.
        """
        with self._lock:
            self._ask()
            if self._account is not None:
                progress = self._progress()
                try:
                    self._account.draw(self.entry, self._lease, progress)
                except BudgetExceeded:  # it counted a draw whose answer was lost
                    self._left = 0
                    raise
                self._recorded = progress
            self._charged = True
            self._left -= 1
            return Permit(self._terms.tokens_per_draw, self._terms.noise_multiplier)

    def keep(self, histogram: Mapping[str, object]) -> None:
        """Keep a released histogram, and record it, so that whoever resumes the run need not draw again.

        Where that fails it is kept here alone; the next release records it.

        Raises:
            BudgetExceeded: this is a forked child's copy.
        """
        with self._lock:
            self._check_own()
            self.histogram = histogram
            self._keep_progress()

    def stand(self, slots: list[int]) -> bool:
        """Note which of the released lines stand; false, and not noted, if others recorded something since.

        If the account cannot record it, the next release does.
        """
        with self._lock:
            self._check_own()
            known, self.slots = self.slots, slots
            try:
                self._record_progress()
            except RunTakenOver:
                self.slots = known
                return False
            except LedgerError:
                pass
            return True

    def release(self, line: Mapping[str, object]) -> None:
        """Record a demonstration whose last token was drawn. Nobody may get its text before this returns.

        It may follow `close`: what was drawn is paid for.

        Args:
            line: `Demonstration.as_line`.

        Raises:
            BudgetExceeded: this is a forked child's copy.
            RunTakenOver: another run resumed it.
            LedgerError: it could not be recorded, or its answer was lost: `finish_release` repeats it.
        """
        with self._lock:
            self._check_own()
            self._unrecorded, self._late = line, None
            self._record(line)

    def finish_release(self) -> Mapping[str, object] | None:
        """Record what `release` failed to record, and return its line; None if there is nothing.

        To be called before anything else is drawn. Errors are those of `release`.
        """
        with self._lock:
            if self._unrecorded is None:
                late, self._late = self._late, None
                return late
            self._check_own()
            self._record(self._unrecorded)
            return self.released[-1]

    def _record(self, line: Mapping[str, object]) -> None:
        """Record a release; with the same progress as before, the account records it once."""
        released, slots = [*self.released, line], self._filled(line["label"])
        unfinished = {label: each for label, each in self.unfinished.items() if label != line["label"]}
        if self._account is not None and self._durable:
            progress = self._as_json(released, unfinished, slots)
            try:
                self._account.record_release(
                    self.entry, self._lease, line_hash(line), progress, self._recorded
                )
            except RunTakenOver:
                raise
            except LedgerError as error:
                raise LedgerError(
                    f"{error}. What was released is kept until the ledger has its hash: ask for it again, "
                    "which draws nothing"
                ) from None
            self._recorded = progress
        self.released, self.unfinished, self._unrecorded = released, unfinished, None
        self.slots = slots

    def hand_over(self) -> None:
        """Leave the remaining draws to whoever resumes the run; this object draws no more."""
        with self._lock:
            if self._charged and not self._closed:
                self._keep_progress()
            self._closed = True

    def close(self) -> None:
        """Give everything back to the account if nothing was drawn, else settle. No draw can follow.

        Raises:
            LedgerError: the cost could not be given back. It stays spent and nothing changes here, so `close`
                may be called again.
        """
        with self._lock:
            if self._account is not None and not self._closed:
                if not self._charged:
                    self._account.cancel(self.entry)  # keeps an entry that it may have charged
                else:
                    self._keep_progress()
                if self.asked:
                    # an entry counts the same charged or settled: a failure must not lose what was released
                    with suppress(LedgerError):
                        self._account.settle(self.entry, self._lease)
            self._closed = True

    def _ask(self) -> None:
        self._check_own()
        if self._closed or not self._left:
            raise BudgetExceeded(USED_UP)
        self.asked = True

    def _check_own(self) -> None:
        if self._inherited:
            raise BudgetExceeded("this plan was reserved by the parent process, which draws from it")

    def _keep_progress(self) -> None:
        """Record what is released, which no draw will record any more; what fails is kept here alone."""
        if self._unrecorded is not None:
            with suppress(LedgerError):
                self._record(self._unrecorded)
        if self._unrecorded is not None and self.histogram is None:  # it may be there: nothing overwrites it
            return
        with suppress(LedgerError):
            self._record_progress()

    def _record_progress(self) -> None:
        progress, counted = self._progress(), self.histogram is not None
        if self._account is not None and progress != self._recorded:
            self._account.record_progress(self.entry, self._lease, progress, self._recorded, counted=counted)
            self._recorded = progress

    def _progress(self) -> str:
        return self._as_json(self.released, self.unfinished, self.slots) if self._durable else ""

    def _as_json(
        self, released: list[Mapping[str, object]], unfinished: Mapping[str, list[int]], slots: list[int]
    ) -> str:
        kept = {} if self.histogram is None else {"histogram": self.histogram}
        standing = {} if slots == list(range(len(released))) else {"slots": slots}
        public = {"released": released, "unfinished": unfinished, **standing, **kept}
        return json.dumps({"writer": self._writer, **public})


def is_counted(entry: Entry) -> bool:
    """Whether the entry's words are counted, so that it draws no more."""
    return "histogram" in json.loads(entry.draws.progress or NO_PROGRESS)


def place_of(slot: int) -> int:
    """The place of a slot's line among all that are released, whether the line stands or is replaced."""
    return max(slot, ~slot)


def _slots(progress: Mapping[str, Any]) -> list[int]:
    """Which of the released lines stand: all, where nothing is said."""
    slots: list[int] = progress.get("slots", list(range(len(progress["released"]))))
    return slots


def _check_slots(slots: object, released: int, entry: int) -> None:
    """Refuse slots that name a line twice, or one that there is none of."""
    if isinstance(slots, list) and all(type(one) is int for one in slots):
        places = {place_of(slot) for slot in slots}
        if len(places) == len(slots) and places <= set(range(released)):
            return
    raise LedgerError(f"entry {entry} was changed behind the ledger's back: {VERIFY}")
