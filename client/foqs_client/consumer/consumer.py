"""The consumer loop: dequeues items, runs a handler for each, and settles them.

Holds `Consumer`. Always true: at most `in_flight` items wait for a handler or run. Every
item is acked, nacked, released, or lost with its lease, and counted as one of these.
A failure of a host or of the network is retried and never ends the loop. An error
within the loop ends it; items that could not be settled come back when their leases
end. `TopicScheduler` and `InFlightSet` decide, this module acts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any, Final

from foqs_client.client import COMMIT_TIMEOUT_MS, Client
from foqs_client.consumer.begin_pauses import BeginPauses
from foqs_client.consumer.declared_limit import DeclaredLimit
from foqs_client.consumer.failure_backoff import FailureBackoff
from foqs_client.consumer.handler_outcome import (
    RELEASED,
    Counts,
    HandlerOutcome,
    OutcomeKind,
    describe_attempt,
    end_attempts,
    outcome_of,
)
from foqs_client.consumer.handler_runners import (
    Handler,
    HandlerRunner,
    TaskRunner,
    ThreadRunner,
    is_async,
    report_end,
)
from foqs_client.consumer.handler_spans import HandlerSpans
from foqs_client.consumer.in_flight_set import HandlingState, InFlightItem, InFlightSet
from foqs_client.consumer.job import Job, NotBegun
from foqs_client.consumer.lease_renewal import LeaseRenewal
from foqs_client.consumer.process_runner import ProcessRunner
from foqs_client.consumer.settler import Settler
from foqs_client.consumer.topic_discovery import TopicDiscovery
from foqs_client.consumer.topic_scheduler import TopicScheduler
from foqs_client.consumer.topic_selection import TopicSelection
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.types import Deliveries, Delivery, Topic
from foqs_contract.plurals import counted

CONCURRENCY_DEFAULT: Final = 10
IN_FLIGHT_MAX: Final = 10_000
ITEMS_PER_CALL: Final = 500
FETCH_CALLS_MAX: Final = 4
"""The maximum number of dequeues without a wait that are in flight at a time."""
HANDLER_TURNS: Final = 2
"""Handlers that never wait end within this number of turns of the event loop. The next dequeue asks for their room too."""
POLL_S_MAX: Final = 1.0
"""The longest wait of a long poll. A stop must wait for the items of a poll that is in flight."""
SETTLE_S_MAX: Final = 5.0
"""How long a stop settles items after the handlers have ended."""

log = logging.getLogger("foqs.consumer")


class Consumer:
    """Dequeues items of some topics and runs a handler for each, until it is stopped.

    Items are delivered at least once: if a process dies or a lease cannot be renewed,
    the item is delivered again. A handler must work correctly if it runs twice for the
    same item.

    Example: `counts = await Consumer(client, send, ["mail.*"], concurrency=20).run()`

    Args:
        client: gives the hosts and the namespace. The caller closes it.
        handler: an `async def` runs in the event loop, a plain function in a thread or, with
            `processes`, in a worker process. If it returns, the item is acked. It may raise
            `Retry`, `Dead`, `Discard` or `NotBegun`. After any other exception the item is nacked, and is
            delivered again after the namespace's backoff.
        topics: topics, and patterns such as `email.*`; `*` is all topics. The consumer finds
            new topics that match while it runs.
        concurrency: the maximum number of handlers that run at a time, 1 to 10,000.
        in_flight: the maximum number of items that run or wait for a handler, `concurrency` to
            10,000. None: the concurrency, so no item waits here while another worker may be idle.
        processes: run the handler in this number of worker processes, which replaces
            `concurrency`. The handler must be a plain function at the top of a module. 0: none.
        weights: by topic or pattern: how many items are dequeued for one item of a topic of
            weight 1, the default.
        lease_ms: replaces the lease durations of the items. Leases are renewed while handlers run.
        group_leases_max: the most leased items of a group that the handler is made for; 1: strict order. The policies of
            the topics, which must have no patterns, must allow no more: else `run` raises InvalidArgument before it
            dequeues, or stops within ten seconds after a policy was changed. None: nothing is compared.
        stop_timeout_s: how long a stop waits for running handlers, in seconds.
        cancel_lost: cancel an async handler whose lease has ended. False: it only sees `job.lost`.
        discover_s: the pause between two searches for topics, in seconds.
        others: topics and patterns to leave out, even if `topics` matches them.
        rng: spreads pauses.

    Attributes:
        aborted: `abort` was called, or `run` was cancelled.

    Raises:
        InvalidArgument: an argument is wrong; `field` names it.
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
        group_leases_max: int | None = None,
        stop_timeout_s: float = 30.0,
        cancel_lost: bool = True,
        discover_s: float = 0.5,
        others: Sequence[str] = (),
        rng: Random | None = None,
    ) -> None:
        if processes:
            concurrency = processes
        in_flight = concurrency if in_flight is None else in_flight
        _check_range("concurrency", concurrency, 1, IN_FLIGHT_MAX)
        _check_range("in_flight", in_flight, concurrency, IN_FLIGHT_MAX)
        rng = rng or Random()
        self._selection = selection = TopicSelection(topics, weights, others)
        self._client = client
        spans = None if client.tracing is None else HandlerSpans(client.tracing)
        self._runner = _runner_for(handler, concurrency, processes, spans)
        # A worker process makes no spans: the span of its handler is made here.
        self._traced_end = spans.traced_end if processes and spans is not None else None
        self._scheduler = TopicScheduler(selection)
        self._in_flight = InFlightSet(in_flight, concurrency, lease_ms)
        self._lease_ms = lease_ms
        self._stop_timeout_s = stop_timeout_s
        self._cancel_lost = cancel_lost
        self._discover_s = discover_s
        self._items_per_call = ITEMS_PER_CALL
        self._is_outage_logged = False
        self._dequeue_backoff = FailureBackoff("dequeue", _log_failure, rng)
        backoff = FailureBackoff("topic discovery", _log_failure, rng)
        self._declared_limit: DeclaredLimit | None = None
        if group_leases_max is not None:
            self._declared_limit = DeclaredLimit(
                client,
                selection.exact_topics,
                group_leases_max,
                FailureBackoff("reading of policies", _log_failure, rng),
                has_patterns=bool(selection.prefixes),
            )
        self._begin_pauses = BeginPauses(_log_failure, rng)
        self._discovery = TopicDiscovery(client, selection.prefixes, self._on_topics_listed, backoff, discover_s, rng)
        self._wake = asyncio.Event()
        self._settler = Settler(client, self._in_flight, self._wake.set, self._fail, rng)
        self._renewal = LeaseRenewal(client, self._in_flight, lease_ms, self._on_lost, self._fail)
        self._loop: asyncio.AbstractEventLoop
        self._fetch_count = 0
        self._fetch_count_max = 1
        """The most dequeues without a wait at a time; one more after each that returned half of what it asked for."""
        self._is_polling = False
        self._release_count = 0
        self._stopping = asyncio.Event()
        self.aborted = self._is_closed = False
        self._jobs: dict[Job, InFlightItem] = {}
        """The items whose handlers run."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._failure: BaseException | None = None

    # ------------------------------------------------------------------- running

    @property
    def counts(self) -> Counts:
        """The counts since the start."""
        in_flight = self._in_flight
        ended = {kind.value: in_flight.ended_counts[kind] for kind in OutcomeKind}
        return Counts(**ended, running=in_flight.running_count, waiting=in_flight.waiting_count)

    @property
    def concurrency(self) -> int:
        """The maximum number of handlers that run at a time."""
        return self._in_flight.concurrency

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the running worker processes. Empty if handlers run in this process."""
        return self._runner.pids if isinstance(self._runner, ProcessRunner) else []

    def covers(self, topic: str) -> bool:
        """Return whether the consumer works on a topic."""
        return self._selection.covers(topic)

    def stop(self) -> None:
        """Stop in order, and return at once.

        The consumer dequeues nothing more, releases items that no handler has started, and
        waits at most `stop_timeout_s` for running handlers. Then `run` returns.
        """
        self._stopping.set()
        self._wake.set()

    def abort(self) -> None:
        """Make `run` return at once. Items in flight are delivered again when their leases end."""
        self.aborted = True
        self.stop()

    async def run(self) -> Counts:
        """Work until `stop` or `abort`, and return the counts. To cancel it is an abort.

        Raises:
            CannotStart: a worker process cannot be started.
            InvalidArgument: the policy of a topic allows more leases of a group than `group_leases_max`.
            NotImplementedYet: with `group_leases_max`, the host is of an older version.
            Exception: an internal error of the consumer or of the client. Errors of hosts are
                retried, errors of handlers nack their items; neither is raised.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._start()
            searches = [self._spawn(self._discovery.run())]
            if self._declared_limit is not None and not self._stopping.is_set():
                searches.append(self._spawn(self._declared_limit.run()))
            while not self._stopping.is_set() and self._failure is None:
                self._start_dequeues()
                await self._wake.wait()
                for _ in range(HANDLER_TURNS):
                    await asyncio.sleep(0)
                self._wake.clear()
            for search in searches:
                search.cancel()
            await self._end_items()
        finally:
            await self._close()
        if self._failure is not None:
            raise self._failure
        return self.counts

    async def _start(self) -> None:
        """Wait until the work may begin, or until a stop: a process that does not start must not delay it."""
        starting, stopping = asyncio.ensure_future(self._prepare()), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
        finally:
            stopping.cancel()
            starting.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    async def _prepare(self) -> None:
        if self._declared_limit is not None:
            await self._declared_limit.check()
        await self._runner.start()

    def _start_dequeues(self) -> None:
        """Start dequeues without a wait for hot topics; if there are none, start one long poll."""
        if self._begin_pauses.is_paused:
            return
        in_flight, scheduler = self._in_flight, self._scheduler
        if scheduler.hot_count:
            while self._fetch_count < self._fetch_count_max and in_flight.should_dequeue(
                is_extra_call=self._fetch_count > 0
            ):
                wants = scheduler.fetch_wants(min(in_flight.room, self._items_per_call))
                items = min(in_flight.room, self._items_per_call, sum(wants.values()))
                self._fetch_count += 1
                in_flight.reserve(items)
                self._spawn(self._fetch(wants, items))
        elif not self._is_polling and in_flight.should_dequeue():
            # The other half of the room is for topics that the discovery finds meanwhile.
            items = min(in_flight.room - in_flight.room // 2, self._items_per_call)
            wants = scheduler.poll_wants(items)
            if wants:
                self._is_polling = True
                in_flight.reserve(items)
                self._spawn(self._poll(wants, items))

    async def _fetch(self, wants: Mapping[str, int], items: int) -> None:
        received = await self._dequeue(wants, items, 0)
        self._fetch_count -= 1
        self._fetch_count_max = min(FETCH_CALLS_MAX, self._fetch_count_max + 1) if 2 * received >= items else 1
        self._wake.set()

    async def _poll(self, wants: Mapping[str, int], items: int) -> None:
        wait_s = POLL_S_MAX if self._scheduler.can_poll_all else min(POLL_S_MAX, self._discover_s)
        await self._dequeue(wants, items, int(wait_s * 1_000))
        self._is_polling = False
        self._wake.set()

    async def _dequeue(self, wants: Mapping[str, int], items: int, wait_ms: int) -> int:
        """Make one call, and pause after a failure. Return the number of items."""
        found = Deliveries()
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
            self._log_outage(found)
            self._scheduler.on_deliveries(wants, found, items, now_s)
            self._on_items_added()
            return len(found)
        self._scheduler.on_call_failed(wants)
        if not (isinstance(failure, LimitExceeded) and self._reduce_call_size(failure, len(wants), items)):
            await self._sleep_unless_stopped(self._dequeue_backoff.on_failure(failure))
        return 0

    def _log_outage(self, found: Deliveries) -> None:
        """Log when some shards cannot deliver, and when all can again. A dequeue with items says nothing about that."""
        if found or bool(found.unavailable_shards) == self._is_outage_logged:
            return
        self._is_outage_logged = not self._is_outage_logged
        if self._is_outage_logged:
            log.warning(
                "%s may hold items and cannot deliver them now; foqs shard list says why",
                counted(found.unavailable_shards, "shard"),
            )
        else:
            log.info("no shard with items is unavailable any more")

    def _on_items_added(self) -> None:
        if not self._stopping.is_set():
            self._start_handlers()
        self._renewal.schedule()

    def _reduce_call_size(self, error: LimitExceeded, topics: int, items: int) -> bool:
        """Ask for less per call, because a host has a lower limit. Return False if nothing can be reduced."""
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
        """Release items beyond those asked for. If it fails, they come back when their leases end."""
        self._release_count += 1
        try:
            await self._client.release(surplus)
        except FoqsError as error:
            log.debug("surplus items could not be released, and come back when their leases end: %s", error)
        finally:
            self._release_count -= 1
            self._wake.set()

    # ------------------------------------------------------------------ handlers

    def _start_handlers(self) -> None:
        in_flight, submit = self._in_flight, self._runner.submit
        while (item := in_flight.start_next()) is not None:
            job = item.job = Job(item.delivery, self._schedule_extension)
            self._jobs[job] = item
            on_done = self._on_handler_ended
            try:
                submit(job, on_done if self._traced_end is None else self._traced_end(job, on_done))
            except Exception as error:  # as when a span cannot be begun; the item is nacked
                self._loop.call_soon(report_end, on_done, job, error)

    def _on_handler_ended(self, job: Job, error: BaseException | None) -> None:
        item = self._jobs.pop(job)
        if item.state is not HandlingState.RUNNING or self._is_closed:
            return
        stopping = self._stopping.is_set()
        outcome = end_attempts(self._outcome_of(error, item, stopping=stopping), item.delivery)
        if self._in_flight.finish(item, outcome):
            try:
                self._settler.settle(item)
            except Exception:  # its lease ends by itself, and the item makes room
                self._in_flight.mark_settle_failed(item)
                raise
        if not stopping:
            self._start_handlers()
        self._wake.set()
        if not stopping:
            self._pause_if_not_begun(error)
        if outcome.error is not None:  # last, because a handler of the log may raise
            _log_failed_handler(item.delivery, outcome, error)

    def _pause_if_not_begun(self, error: BaseException | None) -> None:
        if not isinstance(error, NotBegun):
            self._begin_pauses.on_begun()
        elif (pause_s := self._begin_pauses.on_not_begun(error)) is not None:
            self._spawn(self._end_pause_after(pause_s))

    async def _end_pause_after(self, pause_s: float) -> None:
        await self._sleep_unless_stopped(pause_s)
        self._begin_pauses.on_pause_over()
        self._wake.set()

    def _outcome_of(self, error: BaseException | None, item: InFlightItem, *, stopping: bool) -> HandlerOutcome:
        if stopping and isinstance(error, asyncio.CancelledError):
            return RELEASED
        try:
            outcome = outcome_of(error, item.delivery.metadata)
            then = () if item.job is None else item.job.then
            return replace(outcome, then=then) if then and outcome.kind is OutcomeKind.DONE else outcome
        except Exception as unusable:  # whatever a handler raises, its item is nacked
            log.exception("the error of the handler of item %s cannot be read", item.delivery.id)
            return HandlerOutcome(OutcomeKind.RETRIED, error=type(unusable).__name__)

    def _schedule_extension(self, job: Job, lease_ms: int) -> None:
        # A handler may call this from any thread.
        self._loop.call_soon_threadsafe(self._extend_now, job, lease_ms)

    def _extend_now(self, job: Job, lease_ms: int) -> None:
        item = self._jobs.get(job)
        if item is not None and item.state is HandlingState.RUNNING and not item.is_lost and not self._is_closed:
            item.lease_ms = lease_ms
            self._renewal.renew([item])

    def _on_lost(self, item: InFlightItem) -> None:
        if item.job is not None:
            self._runner.on_lost(item.job, interrupt=self._cancel_lost)
        self._wake.set()

    # ------------------------------------------------------------------ stopping

    async def _end_items(self) -> None:
        """End in this order; an abort ends each step at once.

        1. Wait for dequeues in flight: they might receive items that were released earlier.
        2. Release the items that no handler has started.
        3. Wait for running handlers, then interrupt them and release their items.
        4. Settle all items.
        """
        until_s = self._loop.time() + self._stop_timeout_s
        await self._wait_until(lambda: not self._has_calls_in_flight, POLL_S_MAX + SETTLE_S_MAX)
        self._release_waiting()
        await self._wait_until(lambda: not self._in_flight.running_count, until_s - self._loop.time())
        self._interrupt_handlers()
        self._release_waiting()
        await self._wait_until(lambda: not (len(self._in_flight) or self._has_calls_in_flight), SETTLE_S_MAX)

    @property
    def _has_calls_in_flight(self) -> bool:
        """Whether a dequeue, or the release of its surplus, is in flight."""
        return self._fetch_count > 0 or self._is_polling or self._release_count > 0

    def _interrupt_handlers(self) -> None:
        for item in self._in_flight.running_items():
            assert item.job is not None
            if not self.aborted:
                log.warning("item %s is released: its handler did not end in time", item.delivery.id)
            item.job.lost = True
            self._runner.interrupt(item.job)
            # A cancelled task reports its end; a thread or a process may not.
            if not isinstance(self._runner, TaskRunner) and self._in_flight.finish(item, RELEASED):
                self._settler.settle(item)

    def _release_waiting(self) -> None:
        if self.aborted:
            return
        for item in self._in_flight.finish_waiting(RELEASED):
            self._settler.settle(item)

    async def _close(self) -> None:
        self._is_closed = True
        self._stopping.set()
        await self._runner.close()
        await self._renewal.close()
        await self._settler.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)  # and for `_on_task_ended`, for which `gather` does not wait

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
        """End the consumer because of an internal error."""
        self._failure = self._failure or error
        self.stop()

    async def _sleep_unless_stopped(self, seconds: float) -> None:

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition holds, the time ends, or an abort."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition() and not self.aborted:
                    self._wake.clear()
                    await self._wake.wait()


def _runner_for(handler: Handler, concurrency: int, processes: int, spans: HandlerSpans | None) -> HandlerRunner:
    if not callable(handler):
        raise InvalidArgument(f"{handler!r} is not a function; give one that takes a Job", field="handler")
    if is_async(handler):
        if processes:
            raise InvalidArgument(
                "an async handler runs in the event loop, not in processes; make it a plain function", field="processes"
            )
        return TaskRunner(handler if spans is None else spans.traced_async(handler))
    if processes:
        return ProcessRunner(handler, processes, log.warning)
    return ThreadRunner(handler if spans is None else spans.traced(handler), concurrency)


def _check_range(name: str, value: int, value_min: int, value_max: int) -> None:
    if not value_min <= value <= value_max:
        raise InvalidArgument(f"{value} is not a number from {value_min} to {value_max}", field=name)


def _log_failure(text: str, is_over: bool) -> None:
    log.log(logging.INFO if is_over else logging.WARNING, text)


def _how_it_ends(outcome: HandlerOutcome) -> str:
    if outcome.is_given_up:
        return ", and the item is dead"
    return ", and it was the last attempt" if outcome.kind is OutcomeKind.DEAD else ""


def _log_failed_handler(delivery: Delivery, outcome: HandlerOutcome, error: BaseException | None) -> None:
    log.warning(
        "%s of item %s of %s failed%s: %s",
        describe_attempt(delivery),
        delivery.id,
        delivery.topic,
        _how_it_ends(outcome),
        outcome.error,
        exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
    )
