"""The consumer loop: takes items, has them handled, and tells the hosts what came of each.

Holds `Consumer`. Always true: no more than `in_flight` items are held at a time;
every item that was taken is acked, nacked, released, or lost with its lease, and
counted as one of these; what fails at the hosts' or on the way is tried again and
never ends the loop; what fails within it ends it, and leaves what could not be told
to the leases' ends. What to do is decided by `Turns` and `Hand`; here it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from random import Random
from types import MappingProxyType
from typing import Any, Final

from foqs_client.client import COMMIT_TIMEOUT_MS, Client
from foqs_client.consumer.consumer_counts import Counts
from foqs_client.consumer.failure_backoff import FailureBackoff
from foqs_client.consumer.handler_outcome import RELEASED, OutcomeKind, outcome_of
from foqs_client.consumer.handler_runners import Handler, HandlerRunner, TaskRunner, ThreadRunner, is_async
from foqs_client.consumer.in_flight_set import HandlingState, InFlightItem, InFlightSet
from foqs_client.consumer.job import Job
from foqs_client.consumer.lease_renewal import LeaseRenewal
from foqs_client.consumer.process_runner import ProcessRunner
from foqs_client.consumer.settler import Settler
from foqs_client.consumer.topic_discovery import TopicDiscovery
from foqs_client.consumer.topic_scheduler import TopicScheduler
from foqs_client.consumer.topic_selection import TopicSelection
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.types import Delivery, Topic

CONCURRENCY_DEFAULT: Final = 10
IN_FLIGHT_MAX: Final = 10_000
ITEMS_PER_CALL: Final = 500
FETCH_CALLS_MAX: Final = 4
"""So many calls that take what is there are under way at a time, while they bring enough."""
POLL_S_MAX: Final = 1.0
"""No poll waits longer, so that a stop needs not wait long for what it may bring."""
SETTLE_S_MAX: Final = 5.0
"""After a stop, hosts are told what came of items for so long beyond the drain."""

log = logging.getLogger("foqs.consumer")


class Consumer:
    """Takes items of some topics and runs a handler for each, until it is stopped.

    Items are delivered at least once: a handler whose process dies, or whose lease
    cannot be renewed, leaves its item to be delivered again, so it must stand
    being run twice.

    Args:
        client: whose namespace is consumed; the caller's to close.
        handler: `async def` runs in the loop, a plain function in a thread, or with
            `processes` in a process of its own. To return acks the item; to raise
            `Retry`, `Dead` or `Discard` does what they say; any other exception nacks
            it, and it comes back by the namespace's backoff.
        topics: topics, and patterns such as `email.*`, which follow what there is; `*` is all.
        concurrency: handlers at a time.
        in_flight: items held at a time, those that wait for a handler included;
            None: twice the concurrency, so that handlers never wait for the network.
        processes: worker processes for a plain function that can be imported; they are the concurrency then.
        weights: by topic or pattern: how many items are taken for one of a topic of weight 1.
        lease_ms: overrides the items' own lease durations. Leases are renewed while handlers run.
        drain_timeout_s: how long a stop waits for handlers that run.
        cancel_lost: cancel an async handler whose lease is over; otherwise it only sees `job.lost`.
        discover_s: how often topics are looked for.
        others: topics and patterns that are left out, though `topics` covers them.
        rng: of jitter.

    Attributes:
        aborted: it did not, or will not, end in order.

    Raises:
        InvalidArgument: one of these cannot be; it is named.
    """

    def __init__(
        self,
        client: Client,
        handler: Handler,
        topics: Sequence[str],
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        in_flight: int | None = None,
        processes: int = 0,
        weights: Mapping[str, float] = MappingProxyType({}),
        lease_ms: int | None = None,
        drain_timeout_s: float = 30.0,
        cancel_lost: bool = True,
        discover_s: float = 0.5,
        others: Sequence[str] = (),
        rng: Random | None = None,
    ) -> None:
        if processes:
            concurrency = processes
        in_flight = 2 * concurrency if in_flight is None else in_flight
        _check_range("concurrency", concurrency, 1, IN_FLIGHT_MAX)
        _check_range("in_flight", in_flight, concurrency, IN_FLIGHT_MAX)
        rng = rng or Random()
        selection = TopicSelection(topics, weights, others)
        self._client = client
        self._runner = _runner_for(handler, concurrency, processes)
        self._scheduler = TopicScheduler(selection)
        self._in_flight = InFlightSet(in_flight, concurrency, lease_ms)
        self._lease_ms = lease_ms
        self._drain_timeout_s = drain_timeout_s
        self._cancel_lost = cancel_lost
        self._discover_s = discover_s
        self._items_per_call = ITEMS_PER_CALL
        self._dequeue_backoff = FailureBackoff("taking items", _log_failure, rng)
        looking = FailureBackoff("looking for topics", _log_failure, rng)
        self._discovery = TopicDiscovery(client, selection.prefixes, self._on_topics_listed, looking, discover_s, rng)
        self._wake = asyncio.Event()
        self._settler = Settler(client, self._in_flight, self._wake.set, self._fail, rng)
        self._renewal = LeaseRenewal(client, self._in_flight, lease_ms, self._on_lost, self._fail)
        self._loop: asyncio.AbstractEventLoop
        self._fetch_count = 0
        self._fetch_count_max = 1
        """Calls for what is there: one, and one more for each that brought enough."""
        self._is_polling = False
        self._release_count = 0
        self._stopping = asyncio.Event()
        self.aborted = self._is_closed = False
        self._jobs: dict[Job, InFlightItem] = {}
        """Those whose handlers run."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._failure: BaseException | None = None

    # ------------------------------------------------------------------- running

    @property
    def counts(self) -> Counts:
        """So far."""
        hand = self._in_flight
        fates = {fate.value: hand.ended_counts[fate] for fate in OutcomeKind}
        return Counts(**fates, running=hand.running_count, waiting=hand.waiting_count)

    def stop(self) -> None:
        """Takes nothing more, gives back what was not begun, and has `run` return when handlers have ended."""
        self._stopping.set()
        self._wake.set()

    def abort(self) -> None:
        """Has `run` return at once; what is in hand is delivered again when its lease ends."""
        self.aborted = True
        self.stop()

    async def run(self) -> Counts:
        """Works until `stop`; to cancel it is an abort.

        Raises:
            CannotStart: the worker processes cannot be started.
            Exception: whatever went wrong within the consumer itself, which is a fault of it or of the client.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._start()
            discovery = self._spawn(self._discovery.run())
            while not self._stopping.is_set() and self._failure is None:
                self._start_dequeues()
                await self._wake.wait()
                self._wake.clear()
            discovery.cancel()
            await self._drain()
        finally:
            await self._close()
        if self._failure is not None:
            raise self._failure
        return self.counts

    async def _start(self) -> None:
        """Returns when the runner is ready, or has no need to be: a process that does not get ready keeps no stop."""
        starting, stopping = asyncio.ensure_future(self._runner.start()), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
        finally:
            stopping.cancel()
            starting.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    def _start_dequeues(self) -> None:
        """Begins the calls that are to be made now: for what is there, or where nothing is, one that waits."""
        hand, turns = self._in_flight, self._scheduler
        if turns.hot_count:
            while self._fetch_count < self._fetch_count_max and hand.should_dequeue(
                is_extra_call=self._fetch_count > 0
            ):
                wants = turns.fetch_wants(min(hand.room, self._items_per_call))
                items = min(hand.room, self._items_per_call, sum(wants.values()))
                self._fetch_count += 1
                hand.reserve(items)
                self._spawn(self._fetch(wants, items))
        elif not self._is_polling and hand.should_dequeue():
            # The other half is for what discovery finds meanwhile.
            items = min(hand.room - hand.room // 2, self._items_per_call)
            wants = turns.poll_wants(items)
            if wants:
                self._is_polling = True
                hand.reserve(items)
                self._spawn(self._poll(wants, items))

    async def _fetch(self, wants: Mapping[str, int], items: int) -> None:
        brought = await self._dequeue(wants, items, 0)
        self._fetch_count -= 1
        self._fetch_count_max = min(FETCH_CALLS_MAX, self._fetch_count_max + 1) if 2 * brought >= items else 1
        self._wake.set()

    async def _poll(self, wants: Mapping[str, int], items: int) -> None:
        wait_s = POLL_S_MAX if self._scheduler.can_poll_all else min(POLL_S_MAX, self._discover_s)
        await self._dequeue(wants, items, int(wait_s * 1_000))
        self._is_polling = False
        self._wake.set()

    async def _dequeue(self, wants: Mapping[str, int], items: int, wait_ms: int) -> int:
        """One call, and the pause after one that failed. Returns how many items it brought."""
        found: Sequence[Delivery] = ()
        failure: FoqsError | None = None
        try:
            found = await self._client.dequeue(
                wants, wait_ms=wait_ms, lease_ms=self._lease_ms, items_max=items, timeout_ms=wait_ms + COMMIT_TIMEOUT_MS
            )
        except FoqsError as error:
            failure = error
        now_s = self._loop.time()
        surplus = self._in_flight.add(items, found, now_s)
        if surplus:
            self._spawn(self._release_surplus(surplus))
        if failure is None:
            self._dequeue_backoff.on_success()
            self._scheduler.on_deliveries(wants, found, items, now_s)
            self._on_items_added()
            return len(found)
        self._scheduler.on_call_failed(wants)
        if not (isinstance(failure, LimitExceeded) and self._reduce_call_size(failure, len(wants), items)):
            await self._sleep_unless_stopped(self._dequeue_backoff.on_failure(failure))
        return 0

    def _on_items_added(self) -> None:
        if not self._stopping.is_set():
            self._start_handlers()
        self._renewal.schedule()

    def _reduce_call_size(self, error: LimitExceeded, topics: int, items: int) -> bool:
        """A host may be configured to allow less than this in a call; False where nothing less can be asked for."""
        if error.field == "topics" and topics > 1:
            self._scheduler.topics_per_call = min(self._scheduler.topics_per_call, topics // 2)
        elif error.field != "lease_ms" and items > 1:
            self._items_per_call = min(self._items_per_call, items // 2)
        else:
            return False
        return True

    def _on_topics_listed(self, rows: Sequence[Topic]) -> None:
        self._scheduler.on_topics_listed(rows, self._loop.time())
        if self._scheduler.hot_count:
            self._wake.set()

    async def _release_surplus(self, surplus: Sequence[Delivery]) -> None:
        """What came beyond what was asked for; where no host can be told, it comes back when its leases end."""
        self._release_count += 1
        try:
            await self._client.release(surplus)
        except FoqsError as error:
            log.debug("items beyond those asked for could not be released: %s", error)
        finally:
            self._release_count -= 1
            self._wake.set()

    # ------------------------------------------------------------------ handlers

    def _start_handlers(self) -> None:
        hand, begin = self._in_flight, self._runner.submit
        while (held := hand.start_next()) is not None:
            job = held.job = Job(held.delivery, self._schedule_extension)
            self._jobs[job] = held
            begin(job, self._on_handler_ended)

    def _on_handler_ended(self, job: Job, error: BaseException | None) -> None:
        """A handler has ended."""
        held = self._jobs.pop(job)
        if held.state is not HandlingState.RUNNING or self._is_closed:
            return
        stopping = self._stopping.is_set()
        if stopping and isinstance(error, asyncio.CancelledError):
            verdict = RELEASED
        else:
            verdict = outcome_of(error, held.delivery.metadata)
        if self._in_flight.finish(held, verdict):
            self._settler.settle(held)
        if verdict.error is not None:
            _log_failed_handler(held, verdict.error, error)
        if not stopping:
            self._start_handlers()
        self._wake.set()

    def _schedule_extension(self, job: Job, lease_ms: int) -> None:
        """A handler wants its lease to be so long; it may run in any thread."""
        self._loop.call_soon_threadsafe(self._extend_now, job, lease_ms)

    def _extend_now(self, job: Job, lease_ms: int) -> None:
        held = self._jobs.get(job)
        if held is not None and held.state is HandlingState.RUNNING and not held.is_lost and not self._is_closed:
            held.lease_ms = lease_ms
            self._renewal.renew([held])

    def _on_lost(self, item: InFlightItem) -> None:
        if item.job is not None:
            self._runner.on_lost(item.job, interrupt=self._cancel_lost)
        self._wake.set()

    # ------------------------------------------------------------------ stopping

    async def _drain(self) -> None:
        """In this order; an abort ends each step at once.

        1. calls under way end: an item that is released earlier would be what they bring
        2. what nobody has begun is released
        3. handlers have their time to end; the others are interrupted, and their items released
        4. the hosts are told what came of everything
        """
        until_s = self._loop.time() + self._drain_timeout_s
        await self._wait_until(lambda: not self._has_calls_in_flight, POLL_S_MAX + SETTLE_S_MAX)
        self._release_waiting()
        await self._wait_until(lambda: not self._in_flight.running_count, until_s - self._loop.time())
        self._interrupt_handlers()
        self._release_waiting()
        await self._wait_until(lambda: not (len(self._in_flight) or self._has_calls_in_flight), SETTLE_S_MAX)

    @property
    def _has_calls_in_flight(self) -> bool:
        """Some call that takes items or gives them back is under way."""
        return self._fetch_count > 0 or self._is_polling or self._release_count > 0

    def _interrupt_handlers(self) -> None:
        for held in self._in_flight.running_items():
            assert held.job is not None
            if not self.aborted:
                log.warning("item %s is released: its handler did not end in time", held.delivery.id)
            held.job.lost = True
            self._runner.interrupt(held.job)
            # A task ends and says so; a thread or process may not.
            if not isinstance(self._runner, TaskRunner) and self._in_flight.finish(held, RELEASED):
                self._settler.settle(held)

    def _release_waiting(self) -> None:
        if self.aborted:
            return
        for held in self._in_flight.drain_waiting(RELEASED):
            self._settler.settle(held)

    async def _close(self) -> None:
        self._is_closed = True
        self._stopping.set()
        await self._runner.close()
        await self._renewal.close()
        await self._settler.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------- helpers

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_ended)
        return task

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """What fails within the consumer is no host's fault: it ends the consumer."""
        self._failure = self._failure or error
        self.stop()

    async def _sleep_unless_stopped(self, seconds: float) -> None:
        """Waits, unless it is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Returns when it holds, when the time is over, or with an abort."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition() and not self.aborted:
                    self._wake.clear()
                    await self._wake.wait()


def _runner_for(handler: Handler, concurrency: int, processes: int) -> HandlerRunner:
    if not callable(handler):
        raise InvalidArgument(f"{handler!r} is not a function of a job", field="handler")
    if is_async(handler):
        if processes:
            raise InvalidArgument(
                "an async handler runs in the loop, not in processes; make it a plain function", field="processes"
            )
        return TaskRunner(handler)
    return ProcessRunner(handler, processes, log.warning) if processes else ThreadRunner(handler, concurrency)


def _check_range(name: str, value: int, value_min: int, value_max: int) -> None:
    if not value_min <= value <= value_max:
        raise InvalidArgument(f"{value} is not a number from {value_min} to {value_max}", field=name)


def _log_failure(text: str, is_over: bool) -> None:
    log.log(logging.INFO if is_over else logging.WARNING, text)


def _log_failed_handler(item: InFlightItem, text: str, error: BaseException | None) -> None:
    delivery = item.delivery
    log.warning(
        "attempt %d of item %s of %s failed: %s",
        delivery.attempt,
        delivery.id,
        delivery.topic,
        text,
        exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
    )
