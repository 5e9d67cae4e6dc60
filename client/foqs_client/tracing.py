"""Spans of the client's calls and of handlers, for OpenTelemetry.

Holds `Tracing`. Names follow the messaging conventions of OpenTelemetry. Always true:
an item carries the context of the span that enqueued it, unless its caller gave it
another one, as a W3C `traceparent`; the spans that receive, process and settle an item
are linked to that span. Without the extra `otel`, or without a tracer provider, there
is no `Tracing`. Knows nothing of exporters.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal

from foqs_client.errors import FoqsError
from foqs_client.safe_text import safe_text
from foqs_client.types import Delivery, Enqueued, Item, Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, TracerProvider

    from foqs_client.consumer.handler_runners import OnDone
    from foqs_client.consumer.job import Job

log = logging.getLogger("foqs.client")

SYSTEM: Final = "foqs"
LINKS_MAX: Final = 100
"""The maximum number of links of a span. A span of more items says only how many there are."""

_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL)
_OperationType = Literal["send", "receive", "process", "settle"]


def make_tracing(choice: bool | TracerProvider, namespace: str, server: tuple[str, int] | None) -> Tracing | None:
    """Return the tracing of a client; None if there is none.

    Args:
        choice: True: the global tracer provider, if the program has set one; False: no spans; or a tracer provider.
        server: host and port, if the client has one address.
    """
    if choice is False:
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider() if choice is True else choice
    # Without an SDK the global provider records nothing. Spans that are not recorded would only make each call slower.
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(provider, namespace, server)


class Tracing:
    """Makes the spans of one client.

    Args:
        provider: the tracer provider.
        namespace: the client's namespace.
        server: host and port, if the client has one address.
    """

    def __init__(self, provider: TracerProvider, namespace: str, server: tuple[str, int] | None) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = provider.get_tracer("foqs_client")
        self._attributes: dict[str, Any] = {"messaging.system": SYSTEM, "messaging.foqs.namespace": namespace}
        if server is not None:
            self._attributes |= {"server.address": server[0], "server.port": server[1]}

    # -------------------------------------------------------------------- calls

    @contextmanager
    def send(self, items: Sequence[Item]) -> Iterator[_Send]:
        """Return a context manager of the span of an enqueue."""
        attributes = self._call_attributes("send", "enqueue", [item.topic for item in items])
        if len(items) == 1:
            attributes["messaging.message.body.size"] = len(items[0].payload)
            attributes["messaging.foqs.priority"] = items[0].priority
        with self._span(_span_name("enqueue", attributes), self._trace.SpanKind.PRODUCER, attributes) as span:
            yield _Send(span, _with_context(items, _traceparent_of(span.get_span_context())))

    @contextmanager
    def receive(self) -> Iterator[_Receive]:
        """Return a context manager for a dequeue. Its span exists only if it delivers items or fails."""
        received = _Receive(time.time_ns())
        try:
            yield received
        except FoqsError as error:
            with _errors_logged():
                span = self._start_receive(received)
                _set_error(span, error)
                span.end()
            raise
        if received.deliveries:
            with _errors_logged():
                self._start_receive(received).end()

    def _start_receive(self, received: _Receive) -> Span:
        deliveries = received.deliveries
        attributes = self._call_attributes("receive", "dequeue", [delivery.topic for delivery in deliveries])
        if len(deliveries) == 1:
            attributes["messaging.message.id"] = deliveries[0].id
        return self._tracer.start_span(
            _span_name("dequeue", attributes),
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            links=self._links(deliveries),
            start_time=received.begun_ns,
        )

    @contextmanager
    def settle(self, name: str, entries: Sequence[Any]) -> Iterator[_Settle]:
        """Return a context manager of the span of an ack, nack or release.

        Args:
            entries: deliveries, or others that only name an item.
        """
        deliveries = [entry for entry in entries if isinstance(entry, Delivery)]
        topics = [delivery.topic for delivery in deliveries] if len(deliveries) == len(entries) else []
        attributes = self._call_attributes("settle", name, topics)
        if len(entries) == 1:
            attributes["messaging.message.id"] = entries[0][0] if isinstance(entries[0], tuple) else entries[0].id
        else:
            attributes["messaging.batch.message_count"] = len(entries)
        span_name = _span_name(name, attributes)
        with self._span(span_name, self._trace.SpanKind.CLIENT, attributes, self._links(deliveries)) as span:
            yield _Settle(span)

    # ------------------------------------------------------------------ handlers

    def traced(self, handler: Callable[[Job], Any]) -> Callable[[Job], Any]:
        """Return a plain handler that runs in a span."""

        @wraps(handler)
        def run(job: Job) -> Any:
            with self._process(job):
                return handler(job)

        return run

    def traced_async(
        self, handler: Callable[[Job], Coroutine[Any, Any, Any]]
    ) -> Callable[[Job], Coroutine[Any, Any, Any]]:
        """Return an `async` handler that runs in a span."""

        @wraps(handler)
        async def run(job: Job) -> Any:
            with self._process(job):
                return await handler(job)

        return run

    def traced_end(self, job: Job, on_done: OnDone) -> OnDone:
        """Start the span of a handler in another process. Return a function that ends it and calls `on_done`."""
        name, attributes = self._process_attributes(job)
        span = self._tracer.start_span(
            name, kind=self._trace.SpanKind.CONSUMER, attributes=attributes, links=self._links([job])
        )

        def end(job: Job, error: BaseException | None) -> None:
            with _errors_logged():
                if error is not None:
                    _set_error(span, error)
                span.end()
            on_done(job, error)

        return end

    @contextmanager
    def _process(self, job: Job) -> Iterator[None]:
        name, attributes = self._process_attributes(job)
        with self._span(name, self._trace.SpanKind.CONSUMER, attributes, self._links([job])):
            yield

    def _process_attributes(self, job: Job) -> tuple[str, dict[str, Any]]:
        """Return the name and the attributes of a handler's span."""
        attributes = self._call_attributes("process", "process", [job.topic])
        attributes["messaging.message.id"] = job.id
        attributes["messaging.message.body.size"] = len(job.payload)
        attributes["messaging.foqs.priority"] = job.priority
        attributes["messaging.foqs.attempt"] = job.attempt
        return _span_name("process", attributes), attributes

    # ------------------------------------------------------------------- helpers

    def _call_attributes(self, kind: _OperationType, name: str, topics: Sequence[str]) -> dict[str, Any]:
        attributes = {**self._attributes, "messaging.operation.type": kind, "messaging.operation.name": name}
        if topics and topics.count(topics[0]) == len(topics):
            attributes["messaging.destination.name"] = topics[0]
        if len(topics) > 1:
            attributes["messaging.batch.message_count"] = len(topics)
        return attributes

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind, attributes: dict[str, Any], links: Sequence[Link] = ()
    ) -> Iterator[Span]:
        """Return a context manager of a span that is the current one."""
        span = self._tracer.start_span(name, kind=kind, attributes=attributes, links=links)
        with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                with _errors_logged():
                    _set_error(span, error)
                raise
            finally:
                with _errors_logged():
                    span.end()

    def _links(self, items: Sequence[Delivery | Job]) -> list[Link]:
        """Return a link to each trace context of these items; none if there are too many."""
        contexts = {item.trace_context for item in items if item.trace_context}
        if len(contexts) > LINKS_MAX:
            return []
        found = [self._parse_traceparent(context) for context in sorted(contexts)]
        return [self._trace.Link(context) for context in found if context is not None]

    def _parse_traceparent(self, text: bytes) -> SpanContext | None:
        """Parse a W3C `traceparent`. Returns None for any other trace context."""
        matched = _TRACEPARENT.fullmatch(text)
        if matched is None:
            return None
        trace_id, span_id, flags = (int(part, 16) for part in matched.groups())
        context = self._trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=self._trace.TraceFlags(flags))
        return context if context.is_valid else None


class _Call:
    """The span of a call whose entries may fail one by one."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def on_results(self, results: Sequence[Enqueued] | Sequence[Outcome]) -> None:
        """Record the first error of the call's results."""
        for result in results:
            if result.error is not None:
                _set_error(self._span, result.error)
                return


class _Send(_Call):
    """An enqueue. Attributes: items: as they are to be sent."""

    def __init__(self, span: Span, items: Sequence[Item]) -> None:
        super().__init__(span)
        self.items = items

    def on_results(self, results: Sequence[Enqueued] | Sequence[Outcome]) -> None:
        super().on_results(results)
        if len(results) == 1 and isinstance(results[0], Enqueued) and results[0].id is not None:
            self._span.set_attribute("messaging.message.id", results[0].id)


class _Settle(_Call):
    """An ack, nack or release."""


class _Receive:
    """A dequeue. Attributes: begun_ns: when it began; deliveries: what it returned."""

    def __init__(self, begun_ns: int) -> None:
        self.begun_ns = begun_ns
        self.deliveries: Sequence[Delivery] = ()


@contextmanager
def _errors_logged() -> Iterator[None]:
    """Log an error of the tracer, such as that of an exporter: it must not change the result of a call or a handler."""
    try:
        yield
    except Exception:
        log.exception("a span could not be recorded")


def _span_name(name: str, attributes: dict[str, Any]) -> str:
    topic = attributes.get("messaging.destination.name")
    return name if topic is None else f"{name} {topic}"


def _set_error(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, safe_text(error)))


def _traceparent_of(context: SpanContext) -> bytes | None:
    if not context.is_valid:
        return None
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)


def _with_context(items: Sequence[Item], context: bytes | None) -> Sequence[Item]:
    """Return the items, with this trace context where they have none."""
    if context is None:
        return items
    return [replace(item, trace_context=context) if item.trace_context is None else item for item in items]
