"""A client that records its calls in a history.

Holds `RecordingClient`, which replaces a `foqs_client.Client` for the calls that
a history can record. Always true: a call is recorded before it is sent, and its
end when it is known. The outcome of a call that is cancelled or fails in an
unforeseen way is unknown; a killed process records no end. If an earlier poll
requested a delivery, and the client knows when, that moment is recorded too. The
workload makes payloads unique. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from foqs_client import (
    Change,
    Client,
    Completed,
    Completion,
    Delivery,
    Enqueued,
    Explanation,
    FoqsError,
    Item,
    Nack,
    Outcome,
)
from tests.support.history import UNKNOWN, Event, History, mark
from tests.support.request_time_client import RequestTimeClient

Lease: TypeAlias = Delivery | tuple[str, int]
T = TypeVar("T")

_NO_PROPERTIES = ("UNKNOWN", UNKNOWN)


class RecordingClient:
    """One client of one process.

    Args:
        history: its clock agrees with the loop's to the millisecond.
        process: the name of the caller.
        wall_ms: the clock against which `deliver_after_ms` was chosen.
        principal: the client's principal, recorded unless it may do everything.
    """

    def __init__(
        self,
        client: Client,
        history: History,
        process: str,
        wall_ms: Callable[[], float],
        principal: str | None = None,
    ) -> None:
        self.client = client
        self.tracing = client.tracing
        self._caller = {} if principal is None else {"principal": principal}
        self._history = history
        self._process = process
        self._wall_ms = wall_ms

    async def enqueue(
        self, items: Sequence[Item], *, atomic: bool = False, timeout_ms: int | None = None
    ) -> list[Enqueued]:
        call = self._invoke("enqueue", [self._new(item) for item in items], **({"atomic": True} if atomic else {}))
        return await self._finish(call, self.client.enqueue(items, atomic=atomic, timeout_ms=timeout_ms), _enqueued)

    async def dequeue(
        self,
        wants: Mapping[str, int],
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        run_max: int = 1,
        timeout_ms: int | None = None,
    ) -> list[Delivery]:
        called_s = asyncio.get_running_loop().time()
        runs = {} if run_max == 1 else {"run_max": run_max}
        call = self._invoke("dequeue", [], topics=dict(wants), wait_ms=wait_ms, lease_ms=lease_ms, **runs)
        reply = self.client.dequeue(wants, wait_ms=wait_ms, lease_ms=lease_ms, timeout_ms=timeout_ms, **runs)

        def describe(delivery: Delivery) -> Event:
            requested_s = (
                self.client.pop_requested_s(delivery, called_s) if isinstance(self.client, RequestTimeClient) else None
            )
            return _delivery(delivery) | ({} if requested_s is None else {"asked_at": round(requested_s * 1_000, 3)})

        return await self._finish(call, reply, describe)

    async def ack(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        call = self._invoke("ack", [_lease(lease) for lease in leases])
        return await self._finish(call, self.client.ack(leases, timeout_ms=timeout_ms), _outcome)

    async def complete(self, completions: Sequence[Completion], *, timeout_ms: int | None = None) -> list[Completed]:
        """Record completions, and also as an ack of each item and an enqueue of all new ones, with the same outcomes."""
        named = [(_lease(each.delivery), [self._new(item) for item in each.items]) for each in completions]
        for lease, items in named:
            for item in items:
                item["key"] = item["key"] or f"then of {lease['id']}: {item['mark']}"
        marks = [{**lease, "marks": [item["mark"] for item in items]} for lease, items in named]
        complete = self._invoke("complete", marks)
        ack = self._invoke("ack", [lease for lease, _ in named])
        enqueue = self._invoke("enqueue", [item for _, items in named for item in items])
        reply = asyncio.ensure_future(self.client.complete(completions, timeout_ms=timeout_ms))

        async def new_items() -> list[Enqueued]:
            results = await _shared(reply)
            return [
                Enqueued(result.ids[place] if result.ids is not None else None, result.error, result.repeated)
                for completion, result in zip(completions, results, strict=True)
                for place in range(len(completion.items))
            ]

        results, _, _ = await asyncio.gather(
            self._finish(complete, _shared(reply), _completed),
            self._finish(ack, _shared(reply), _acked),
            self._finish(enqueue, new_items(), _enqueued),
        )
        return results

    async def nack(self, nacks: Sequence[Nack | Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        call = self._invoke("nack", [self._nack(nack) for nack in nacks])
        return await self._finish(call, self.client.nack(nacks, timeout_ms=timeout_ms), _outcome)

    async def extend(
        self, leases: Sequence[Lease], *, lease_ms: int | None = None, timeout_ms: int | None = None
    ) -> list[Outcome]:
        call = self._invoke("extend", [_lease(lease) | {"lease_ms": lease_ms} for lease in leases])
        return await self._finish(call, self.client.extend(leases, lease_ms=lease_ms, timeout_ms=timeout_ms), _outcome)

    async def release(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        call = self._invoke("release", [_lease(lease) for lease in leases])
        return await self._finish(call, self.client.release(leases, timeout_ms=timeout_ms), _outcome)

    async def cancel(self, ids: Sequence[str], *, timeout_ms: int | None = None) -> list[Outcome]:
        call = self._invoke("cancel", [{"id": each} for each in ids])
        return await self._finish(call, self.client.cancel(ids, timeout_ms=timeout_ms), _outcome)

    async def update(self, ids: Sequence[str], change: Change, *, timeout_ms: int | None = None) -> list[Outcome]:
        changes = {
            "priority": change.priority,
            "delay_ms": change.delay_ms,
            "deliver_after_in_ms": self._until(change.deliver_after_ms),
            "metadata": None if change.metadata is None else _metadata(change.metadata),
        }
        call = self._invoke("update", [{"id": each, **changes} for each in ids])
        return await self._finish(call, self.client.update(ids, change, timeout_ms=timeout_ms), _outcome)

    async def redrive(self, ids: Sequence[str], *, timeout_ms: int | None = None) -> list[Outcome]:
        call = self._invoke("redrive", [{"id": each} for each in ids])
        return await self._finish(call, self.client.redrive(ids, timeout_ms=timeout_ms), _outcome)

    async def move(
        self, ids: Sequence[str], items: Sequence[Item], topic: str, *, timeout_ms: int | None = None
    ) -> list[Enqueued]:
        """Record a move as a cancel of each id and a keyed enqueue of its item, which both have the outcome of the move.

        Args:
            items: what was enqueued with these ids.
        """
        new = [replace(item, topic=topic, idempotency_key=f"move of {id}") for id, item in zip(ids, items, strict=True)]
        cancel = self._invoke("cancel", [{"id": each} for each in ids])
        enqueue = self._invoke("enqueue", [self._new(item) for item in new])
        reply = asyncio.ensure_future(self.client.move(ids, topic, timeout_ms=timeout_ms))
        both = (self._finish(cancel, _shared(reply), _moved_away), self._finish(enqueue, _shared(reply), _enqueued))
        _, results = await asyncio.gather(*both)
        return results

    async def purge_topic(self, topic: str, *, timeout_ms: int | None = None) -> int:
        reply = self.client.purge_topic(topic, timeout_ms=timeout_ms)
        return await self._finish_single(self._invoke("purge", [], topic=topic), reply, lambda items: {"purged": items})

    async def explain(self, id: str) -> Explanation:
        return await self._finish_single(self._invoke("explain", [], id=id), self.client.explain(id), _explained)

    async def record_read(self, op: str, reply: Awaitable[T]) -> T:
        """Record a call that only reads, under the name `op`, without its reply."""
        return await self._finish_single(self._invoke(op, []), reply)

    def _invoke(self, op: str, items: Sequence[Event], **args: object) -> int:
        return self._history.invoke(self._process, op, items, namespace=self.client.namespace, **self._caller, **args)

    async def _finish_single(self, call: int, reply: Awaitable[T], describe: Callable[[T], Event] = lambda _: {}) -> T:
        """Record the end of a call with one result, as `_finish` does."""

        async def results() -> list[T]:
            return [await reply]

        [result] = await self._finish(call, results(), describe)
        return result

    async def _finish(self, call: int, reply: Awaitable[list[T]], describe: Callable[[T], Event]) -> list[T]:
        try:
            results = await reply
        except FoqsError as error:
            if error.code in _NO_PROPERTIES:
                self._history.unknown(call)
            else:
                self._history.fail(call, error.code)
            raise
        except (Exception, asyncio.CancelledError):
            # Not BaseException: a killed process, which is unwound after the run, records nothing.
            self._history.unknown(call)
            raise
        self._history.ok(call, [describe(result) for result in results])
        return results

    def _new(self, item: Item) -> Event:
        return {
            "mark": mark(item.payload),
            "topic": item.topic,
            "priority": item.priority,
            "metadata": _metadata(item.metadata),
            "trace": _metadata(item.trace_context or b""),
            "delay_ms": item.delay_ms,
            "deliver_after_in_ms": self._until(item.deliver_after_ms),
            "lease_ms": item.lease_ms,
            "ttl_ms": item.ttl_ms,
            "at_most_once": item.at_most_once,
            "attempts_max": item.attempts_max,
            "key": item.idempotency_key,
            "group": item.group,
        }

    def _nack(self, nack: Nack | Lease) -> Event:
        if not isinstance(nack, Nack):
            return _lease(nack)
        return {
            "id": nack.id,
            "token": nack.token,
            "delay_ms": nack.delay_ms,
            "deliver_after_in_ms": self._until(nack.deliver_after_ms),
            "metadata": None if nack.metadata is None else _metadata(nack.metadata),
            "dead": nack.dead,
        }

    def _until(self, moment_ms: int | None) -> float | None:
        return None if moment_ms is None else round(moment_ms - self._wall_ms(), 3)


def row_event(
    *,
    id: str,
    payload: bytes,
    topic: str,
    priority: int,
    state: str,
    token: int,
    attempt: int,
    attempts_max: int,
    due_in_ms: int | None,
    metadata: bytes | None = None,
    trace_context: bytes | None = None,
    first_wait_ms: int | None = None,
    group: str | None = None,
) -> Event:
    """Return one row for `History.present`. `due_in_ms`: the time until it is due, negative if overdue."""
    row: Event = {
        "id": id,
        "mark": mark(payload),
        "topic": topic,
        "priority": priority,
        "state": state,
        "token": token,
        "attempt": attempt,
        "attempts_max": attempts_max,
        "due_in_ms": due_in_ms,
    }
    if metadata is not None:
        row["metadata"] = _metadata(metadata)
        row["trace"] = _metadata(trace_context or b"")
        row["first_wait_ms"] = first_wait_ms
        row["group"] = group
    return row


def first_wait_ms(enqueued_at_ms: int, first_delivered_at_ms: int | None) -> int | None:
    """Return the time from the enqueue of an item to its first delivery; None if there was none."""
    return None if first_delivered_at_ms is None else first_delivered_at_ms - enqueued_at_ms


def _metadata(metadata: bytes) -> str:
    """Return a hash, as metadata need not be text; empty stays empty."""
    return mark(metadata) if metadata else ""


def _lease(lease: Lease) -> Event:
    if isinstance(lease, Delivery):
        return {"id": lease.id, "token": lease.token}
    return {"id": lease[0], "token": lease[1]}


async def _shared(reply: asyncio.Future[T]) -> T:
    """Return the result of a call that others wait for too."""
    return await asyncio.shield(reply)


def _moved_away(result: Enqueued) -> Event:
    if result.error is not None:
        return _error(result.error)
    return {"already_gone": True} if result.repeated else {}


def _completed(result: Completed) -> Event:
    if result.error is not None:
        return _error(result.error)
    return {"ids": result.ids, "repeated": result.repeated}


def _acked(result: Completed) -> Event:
    if result.error is not None:
        return _error(result.error)
    return {"already_gone": True} if result.repeated else {}


def _enqueued(result: Enqueued) -> Event:
    if result.error is not None:
        return _error(result.error)
    return {"id": result.id, "repeated": result.repeated}


def _delivery(delivery: Delivery) -> Event:
    return {
        "id": delivery.id,
        "token": delivery.token,
        "topic": delivery.topic,
        "priority": delivery.priority,
        "mark": mark(delivery.payload),
        "metadata": _metadata(delivery.metadata),
        "attempt": delivery.attempt,
        "attempts_max": delivery.attempts_max,
        "lease_remaining_ms": delivery.lease_remaining_ms,
        "age_ms": delivery.age_ms,
        "trace": _metadata(delivery.trace_context or b""),
        "group": delivery.group,
        "first_wait_ms": None
        if delivery.first_delivery_age_ms is None
        else delivery.age_ms - delivery.first_delivery_age_ms,
    }


def _explained(answer: Explanation) -> Event:
    """`described`: the state that its sentences name, if they name one."""
    described = next((state for words, state in _STATES for reason in answer.reasons if reason.startswith(words)), None)
    view = answer.item
    shown = {} if view is None else {"state": view.state, "attempt": view.attempt}
    return {"absent": answer.absent, "described": described, **shown}


_STATES = (
    ("It is deferred", "deferred"),
    ("It came due", "deferred"),
    ("It is ready", "ready"),
    ("A consumer has it", "leased"),
    ("Its lease of", "leased"),
    ("It is dead", "dead"),
)


def _outcome(outcome: Outcome) -> Event:
    if outcome.error is not None:
        return _error(outcome.error)
    return {"already_gone": True} if outcome.already_gone else {}


def _error(error: FoqsError) -> Event:
    return {"error": UNKNOWN if error.code in _NO_PROPERTIES else error.code}
