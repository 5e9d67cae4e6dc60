"""The loop of a relay: it waits until it owns the outbox, then reads rows, stamps them, sends them and deletes them.

Holds `Relay`. Always true: one task changes the memory, between its awaits, so a page is merged before the next round and a reply
is applied between rounds; nothing of a round is sent before its COMMIT is answered. The queue is a port. Knows nothing of the
command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from foqs_client.errors import FoqsError
from foqs_client.outbox.outbox_connection import DatabaseUnreachable, TablesUnavailable
from foqs_client.outbox.outbox_figures import OutboxFigures, read_figures
from foqs_client.outbox.relay_limits import RelayLimits
from foqs_client.outbox.relay_memory import RelayMemory, Round
from foqs_client.outbox.relay_pauses import DEFAULT_PAUSES, RelayPauses
from foqs_client.outbox.relay_tables import LostOwnership, OutboxOwner, RelayTables
from foqs_client.outbox.row_outcome import Reply, replies_of
from foqs_client.outbox.row_refusals import RowRefusals
from foqs_client.outbox.row_sends import RowSends, SendQueue
from foqs_client.outbox.statement_thread import StatementThread
from foqs_client.outbox.sweep_times import SweepTimes

log: Final = logging.getLogger("foqs.relay")

T = TypeVar("T")

_STATEMENT_S_MAX: Final = 10.0
"""A statement that runs for longer is a problem."""
_KEYS_S_MAX: Final = 60.0
"""How old the end of keys may be. An older one shortens the time for a repeat, and says that no host answers."""

_DATABASE: Final = "the outbox' database"
_QUEUE: Final = "the queue"
_REFUSED: Final = "refused rows"
_PARKED: Final = "parked rows"
_UNANSWERED: Final = "no answer yet"
"""The problem of what was not asked yet. It is not logged."""

WITHOUT_RUNS: Final = RelayLimits(run_rows_max=1)
"""The limits as long as no host serves atomic calls: of each row group one row is in flight."""


class Relay:
    """One relay of one outbox.

    Args:
        clock: monotonic, in seconds.
        thread: runs the statements; None: one by this clock.

    Attributes:
        is_owner: whether it works on the outbox now.
        figures: what the outbox holds; None while another relay owns it.
        sent_rows: rows that the queue has answered with an id.
        parked_rows: rows that were parked.
        refused_rows: answers to rows that wait and are sent again.
        rounds, sweeps: what was written, and how often the whole table was read.
    """

    def __init__(
        self,
        tables: RelayTables,
        queue: SendQueue,
        pauses: RelayPauses = DEFAULT_PAUSES,
        limits: RelayLimits = WITHOUT_RUNS,
        clock: Callable[[], float] = time.monotonic,
        thread: StatementThread | None = None,
    ) -> None:
        self._tables = tables
        self._queue = queue
        self._pauses = pauses
        self._limits = limits
        self._clock = clock
        self._thread = thread or StatementThread(clock)
        self._stop = asyncio.Event()
        self._stop_s: float | None = None
        """When a stop ends."""
        self._woken = asyncio.Event()
        self.is_owner = False
        self.figures: OutboxFigures | None = None
        self._counted_s = 0.0
        """When the figures were read."""
        self._problems = dict.fromkeys((_QUEUE, _DATABASE), _UNANSWERED)
        self.sent_rows = self.parked_rows = self.refused_rows = self.rounds = self.sweeps = 0

    @property
    def problems(self) -> dict[str, str]:
        """Why rows wait, by what does not answer. Empty: nothing is wrong."""
        found = dict(self._problems)
        running_s = self._thread.running_s
        if running_s >= _STATEMENT_S_MAX and found.get(_DATABASE, _UNANSWERED) == _UNANSWERED:
            found[_DATABASE] = f"a statement has been running for {running_s:.0f} s"
        return found

    @property
    def lag_s(self) -> float:
        """The age of the oldest row. It grows while no count is answered, because rows may have been added. 0: no count yet."""
        if self.figures is None:
            return 0.0
        late_s = self._clock() - self._counted_s - 2 * self._pauses.figures_s
        return self.figures.oldest_ms / 1_000 + max(0.0, late_s)

    async def wait_for_start(self) -> None:
        """Return when the queue and the database have answered, or `stop` is called. Leave no connection open.

        Raises:
            FoqsError: the queue refuses this relay, and would again.
            TablesUnavailable: the database answers, and the tables cannot be read.
        """
        tasks = [
            asyncio.ensure_future(self._ask_until_answered(_QUEUE, self._queue.keys_until_ms)),
            asyncio.ensure_future(self._ask_until_answered(_DATABASE, self._check_tables)),
        ]
        answered, stopped = asyncio.gather(*tasks), asyncio.ensure_future(self._stop.wait())
        first: list[asyncio.Future[Any]] = [answered, stopped]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                answered.result()
        finally:
            for each in (*tasks, stopped):
                each.cancel()
            await asyncio.gather(*tasks, stopped, answered, return_exceptions=True)

    async def _ask_until_answered(self, part: str, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask again while something does not answer. Raises as `wait_for_start` does."""
        while True:
            try:
                await ask()
            except FoqsError as error:
                if not error.may_succeed_later:
                    raise
                self._report(part, str(error))
            except DatabaseUnreachable as error:
                self._report(part, str(error))
            else:
                return self._report(part, None)
            await asyncio.sleep(self._pauses.again_s)

    async def _check_tables(self) -> None:
        """Read the owner row, and close the connection: `run` opens its own."""
        try:
            await self._thread.call(self._tables.read_owner)
        finally:
            await self._thread.call(self._tables.close)

    def wake(self) -> None:
        """Read a page at once."""
        self._woken.set()

    def stop(self) -> None:
        """Stamp nothing more, and let `run` end when all that was sent is answered and deleted, or `stop_s` is over."""
        self._stop.set()

    async def run(self) -> None:
        """Relay until `stop`."""
        try:
            while (owner := await self._wait_for_turn()) is not None:
                try:
                    await self._own(owner)
                    await self._read_from(self._tables.leave)
                except LostOwnership as error:
                    log.warning("the relay no longer owns its outbox", extra={"reason": str(error)})
                finally:
                    self.is_owner, self.figures = False, None
                    for part in (_QUEUE, _REFUSED, _PARKED):
                        self._report(part, None)
        finally:
            await self._thread.call(self._tables.close)
            self._thread.close()

    async def _wait_for_turn(self) -> OutboxOwner | None:
        """Take the outbox over when its owner writes no more rounds. None: the relay was stopped before."""
        seen, since_s = None, self._clock()
        while not self._stop.is_set():
            owner = await self._read_from(self._tables.read_owner)
            if owner is None:
                continue
            if (owner.epoch, owner.round) != seen:
                seen, since_s = (owner.epoch, owner.round), self._clock()
            is_left = not owner.nonce or self._clock() - since_s >= self._pauses.takeover_s
            if is_left and await self._read_from(partial(self._tables.take_over, owner)):
                return owner
            await self._wait(min(self._pauses.owner_read_s, self._pauses.takeover_s))
        return None

    async def _own(self, owner: OutboxOwner) -> None:
        """Work until the relay is stopped. Raises LostOwnership."""
        stamped = await self._read_from(partial(self._tables.read_stamped, owner.state))
        parked = await self._read_from(self._tables.read_parked)
        if stamped is None or parked is None:
            return
        memory = RelayMemory(owner.state, stamped, parked, self._clock(), self._limits)
        sweeps = SweepTimes(self._pauses.again_s, self._pauses.sweep_s)
        ownership = _Ownership(memory, sweeps, RowSends(self._queue), self._pauses.page_s)
        self.is_owner = True
        asking = asyncio.ensure_future(self._ask_for_keys(ownership))
        try:
            while not (self._stop.is_set() and ownership.is_done):
                self._apply_answers(ownership)
                has_found = not self._stop.is_set() and await self._read(ownership)
                has_written = await self._write_round(ownership)
                self._send_doubtful(ownership)
                await self._count(ownership)
                if has_found or has_written:
                    ownership.pause_s = self._pauses.page_s
                else:
                    await self._pause(ownership)
                if self._is_stop_over():
                    return
        finally:
            asking.cancel()
            await asyncio.gather(asking, ownership.sends.close(), return_exceptions=True)

    def _is_stop_over(self) -> bool:
        """Whether a stop has waited long enough for what is not done."""
        if not self._stop.is_set():
            return False
        if self._stop_s is None:
            self._stop_s = self._clock() + self._pauses.stop_s
        return self._clock() >= self._stop_s

    # ---------------------------------------------------------------------- reads

    async def _read(self, ownership: _Ownership) -> bool:
        """Read a page, a sweep's page and then the gaps. Return whether there were new rows."""
        memory, tables = ownership.memory, self._tables
        self._woken.clear()
        self._begin_sweep(ownership)
        has_found = False
        if (
            memory.wants_rows
            and (page := await self._read_from(partial(tables.read_above, memory.read_to))) is not None
        ):
            memory.add_page(page, self._clock())
            has_found = bool(page)
        if memory.wants_rows and memory.swept_to is not None:
            swept = await self._read_from(partial(tables.read_above, memory.swept_to, memory.read_to))
            if swept is not None:
                memory.add_swept(swept)
                has_found |= bool(swept)
                if memory.swept_to is None:
                    ownership.sweeps.end_sweep(self._clock())
                elif memory.is_sweep_full and ownership.sweeps.may_end_early(self._clock()):
                    memory.end_sweep_early()
                    ownership.sweeps.end_early(self._clock())
        began_s, ranges = self._clock(), memory.gap_ranges
        if ranges and (gaps := await self._read_from(partial(tables.read_ranges, ranges))) is not None:
            memory.add_gap_rows(gaps[0], began_s, is_complete=gaps[1])
        if self._clock() >= ownership.parked_s:
            ownership.parked_s = self._clock() + self._pauses.again_s
            read_parked = partial(tables.read_parked, memory.known_resent, wants_items=memory.wants_resent)
            parked = await self._read_from(read_parked)
            if parked is not None:
                memory.on_parked_read(parked)
        return has_found

    def _begin_sweep(self, ownership: _Ownership) -> None:
        memory, now_s = ownership.memory, self._clock()
        is_wanted = memory.wants_sweep and (memory.has_cut_groups or now_s >= ownership.refusals.again_s)
        if memory.swept_to is None and ownership.sweeps.is_due(
            now_s, is_wanted=is_wanted, has_drained=memory.has_cut_groups and memory.has_drained
        ):
            memory.begin_sweep()
            self.sweeps += 1
            ownership.count_above = 0
            ownership.sweeps.begin_sweep(now_s)

    async def _count(self, ownership: _Ownership) -> None:
        """Count the rows of the outbox from the oldest one on, which a sweep looks for again from the start."""
        if self._clock() < ownership.figures_s:
            return
        ownership.figures_s = self._clock() + self._pauses.figures_s
        found = await self._read_from(partial(read_figures, self._tables.connection, ownership.count_above))
        if found is None:
            return
        self.figures, self._counted_s = found, self._clock()
        if found.oldest_id is not None:
            ownership.count_above = found.oldest_id - 1
        is_full = found.parked >= self._limits.parked_rows_max
        self._report(_PARKED, f"{found.parked} rows are parked, and nothing else is sent" if is_full else None)

    # --------------------------------------------------------------------- rounds

    async def _write_round(self, ownership: _Ownership) -> bool:
        """Write the next round, if it has something to say, and send its calls. Return whether rows were in it."""
        has_end = ownership.refusals.sends_s <= self._clock() < ownership.keys_end_s and not self._stop.is_set()
        until_ms = ownership.keys_until_ms if has_end else None
        round = ownership.memory.plan_round(until_ms)
        if round.is_empty and self._clock() < ownership.round_s:
            return False
        await self._commit(round, ownership.reasons)
        ownership.round_s = self._clock() + self._pauses.round_s
        ownership.memory.on_round_committed()
        ownership.reasons.clear()
        self.rounds += 1
        self.parked_rows += len(round.parked)
        ownership.sends.start(round.calls)
        return not round.is_empty

    async def _commit(self, round: Round, reasons: Mapping[int, str]) -> None:
        """Write a round, and repeat it until its outcome is known. Raises LostOwnership."""
        while True:
            try:
                await self._thread.call(self._tables.commit_round, round, reasons)
                return self._report(_DATABASE, None)
            except TablesUnavailable as error:
                self._report(_DATABASE, str(error))
                if self._is_stop_over():
                    raise LostOwnership("the relay was stopped while a round had no outcome") from None
                await asyncio.sleep(self._pauses.again_s)

    async def _ask_for_keys(self, ownership: _Ownership) -> None:
        """Ask for the end of keys again and again. Beside the loop, which writes rounds also while no host answers."""
        while True:
            asked_s = self._clock()
            try:
                ownership.keys_until_ms = await self._queue.keys_until_ms()
            except Exception as error:
                ownership.keys_end_s = 0.0  # what is stamped now would be refused
                self._report(_QUEUE, str(error))
                await asyncio.sleep(self._pauses.again_s)
                continue
            ownership.keys_end_s = asked_s + _KEYS_S_MAX
            ownership.sends.has_answers.set()  # the loop waits for nothing else
            self._report(_QUEUE, None)
            await asyncio.sleep(self._pauses.keys_s)

    # ---------------------------------------------------------------------- sends

    def _send_doubtful(self, ownership: _Ownership) -> None:
        now_s = self._clock()
        if now_s >= max(ownership.doubtful_s, ownership.refusals.again_s):
            ownership.doubtful_s = now_s + self._pauses.again_s
            ownership.sends.start(ownership.memory.doubtful_calls())

    def _apply_answers(self, ownership: _Ownership) -> None:
        for call, each in ownership.sends.take_answers():
            self.sent_rows += sum([error is None for error in each.values()])
            ownership.reasons.update({id: str(error) for id, error in each.items() if error is not None})
            replies = replies_of(each, is_atomic=call.is_atomic)
            ownership.memory.on_replies(replies)
            for id, error in each.items():
                if error is not None and replies[id] in (Reply.LATER, Reply.UNKNOWN):
                    self.refused_rows += 1
                    ownership.refusals.add(error, self._clock())
        self._report(_REFUSED, ownership.refusals.problem(self._clock()))

    async def _pause(self, ownership: _Ownership) -> None:
        """Wait for an answer, a wake-up, a stop, or the time of the next page."""
        events = [ownership.sends.has_answers, *([] if self._stop.is_set() else [self._stop, self._woken])]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=ownership.pause_s, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        ownership.pause_s = (
            self._pauses.page_s if self._woken.is_set() else min(2 * ownership.pause_s, self._pauses.page_s_max)
        )

    # ---------------------------------------------------------------- the database

    async def _read_from(self, call: Callable[[], T]) -> T | None:
        """Return what a call of the tables returns; None, after a pause, if the database does not answer."""
        try:
            result = await self._thread.call(call)
        except TablesUnavailable as error:
            self._report(_DATABASE, str(error))
            await self._wait(self._pauses.again_s)
            return None
        self._report(_DATABASE, None)
        return result

    def _report(self, part: str, problem: str | None) -> None:
        """Log a problem when it begins and when it ends, and keep it meanwhile."""
        known = self._problems.pop(part, _UNANSWERED)
        if problem is not None:
            self._problems[part] = problem
            if known == _UNANSWERED:
                log.warning("%s: rows wait: %s", part, problem)
        elif known != _UNANSWERED:
            log.info("%s: all is well again", part)

    async def _wait(self, seconds: float) -> None:
        """Wait for a stop, or this time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)


@dataclass(slots=True)
class _Ownership:
    """What a relay knows while it owns the outbox. A time is the earliest one of the next thing of its kind.

    Attributes:
        keys_until_ms, keys_end_s: what rows may be stamped with, and until when.
        count_above: the oldest row is looked for above this id.
        reasons: why rows are parked by the next round, by id.
    """

    memory: RelayMemory
    sweeps: SweepTimes
    sends: RowSends
    pause_s: float
    reasons: dict[int, str] = field(default_factory=dict)
    refusals: RowRefusals = field(default_factory=RowRefusals)
    keys_until_ms: int | None = None
    keys_end_s: float = 0.0
    round_s: float = 0.0
    parked_s: float = 0.0
    doubtful_s: float = 0.0
    figures_s: float = 0.0
    count_above: int = 0

    @property
    def is_done(self) -> bool:
        """Whether a stop has nothing to wait for: no reply, and none that no round has written."""
        return self.sends.is_empty and not self.memory.has_answered
