"""The spans of a client's calls: send, receive, settle.

Always true: an item carries the context of the span that enqueued it, unless its caller
gave it another one, as a W3C `traceparent`; the spans that receive and settle an item
are linked to that span. Knows nothing of handlers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foqs_client.errors import FoqsError
from foqs_client.tracing import Tracing, set_error, traceparent_of, tracer_errors_logged
from foqs_client.types import Delivery, Enqueued, EntryResult, Item

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class CallSpans:
    """Makes the spans of the calls of one client."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    @contextmanager
    def send(self, items: Sequence[Item]) -> Iterator[_Send]:
        """Return a context manager of the span of an enqueue."""
        attributes: dict[str, Any] = {}
        if len(items) == 1:
            attributes["messaging.message.body.size"] = len(items[0].payload)
            attributes["messaging.foqs.priority"] = items[0].priority
        with self._tracing.current("send", "enqueue", [item.topic for item in items], attributes) as span:
            yield _Send(span, _with_context(items, traceparent_of(span)))

    @contextmanager
    def receive(self) -> Iterator[_Receive]:
        """Return a context manager for a dequeue. Its span exists only if it delivers items or fails."""
        received = _Receive(time.time_ns())
        try:
            yield received
        except FoqsError as error:
            with tracer_errors_logged():
                span = self._start_receive(received)
                set_error(span, error)
                span.end()
            raise
        if received.deliveries:
            with tracer_errors_logged():
                self._start_receive(received).end()

    def _start_receive(self, received: _Receive) -> Span:
        deliveries = received.deliveries
        topics = [delivery.topic for delivery in deliveries]
        attributes = {"messaging.message.id": deliveries[0].id} if len(deliveries) == 1 else {}
        return self._tracing.start("receive", "dequeue", topics, attributes, deliveries, received.started_ns)

    @contextmanager
    def settle(self, name: str, entries: Sequence[Any]) -> Iterator[_Settle]:
        """Return a context manager of the span of an ack, completion, nack or release.

        Args:
            entries: deliveries, or entries that have only the id of an item.
        """
        deliveries = [entry for entry in entries if isinstance(entry, Delivery)]
        topics = [delivery.topic for delivery in deliveries] if len(deliveries) == len(entries) else []
        attributes: dict[str, Any] = {}
        if len(entries) == 1:
            attributes["messaging.message.id"] = entries[0][0] if isinstance(entries[0], tuple) else entries[0].id
        else:
            attributes["messaging.batch.message_count"] = len(entries)
        with self._tracing.current("settle", name, topics, attributes, deliveries) as span:
            yield _Settle(span)


class _EntriesSpan:
    """The span of a call whose entries may fail one by one."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def on_results(self, results: Sequence[EntryResult]) -> None:
        """Record the first error of the call's results."""
        for result in results:
            if result.error is not None:
                set_error(self._span, result.error)
                return


class _Send(_EntriesSpan):
    """The span of an enqueue. `items`: the items to send, with their trace contexts."""

    def __init__(self, span: Span, items: Sequence[Item]) -> None:
        super().__init__(span)
        self.items = items

    def on_results(self, results: Sequence[EntryResult]) -> None:
        super().on_results(results)
        if len(results) == 1 and isinstance(results[0], Enqueued) and results[0].id is not None:
            self._span.set_attribute("messaging.message.id", results[0].id)


class _Settle(_EntriesSpan):
    """The span of an ack, completion, nack or release."""

    def with_context(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the new items of a completion, with the trace context of the span where they have none."""
        return _with_context(items, traceparent_of(self._span))


class _Receive:
    """A dequeue, for its span. `started_ns`: when it began, since 1970-01-01 UTC; `deliveries`: those that it returned."""

    def __init__(self, started_ns: int) -> None:
        self.started_ns = started_ns
        self.deliveries: Sequence[Delivery] = ()


def _with_context(items: Sequence[Item], context: bytes | None) -> Sequence[Item]:
    """Return the items, with this trace context where they have none."""
    if context is None:
        return items
    return [replace(item, trace_context=context) if item.trace_context is None else item for item in items]
