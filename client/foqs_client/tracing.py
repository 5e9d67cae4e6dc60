"""Spans of a client, for OpenTelemetry.

Holds `Tracing`, with which `call_spans` and the consumer's `handler_spans` make theirs.
Names follow the messaging conventions of OpenTelemetry. Without the extra `otel`, or
without a tracer provider, there is no `Tracing`. Knows nothing of calls, handlers and
exporters.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from foqs_client.safe_text import safe_text

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider

log = logging.getLogger("foqs.client")

SYSTEM: Final = "foqs"
LINKS_MAX: Final = 100
"""The maximum number of links of a span. A span of more items says only how many there are."""

OperationType = Literal["send", "receive", "process", "settle"]
_SPAN_KINDS: Final[Mapping[OperationType, str]] = {
    "send": "PRODUCER",
    "receive": "CLIENT",
    "process": "CONSUMER",
    "settle": "CLIENT",
}
_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL)
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = MappingProxyType({})


class TracedItem(Protocol):
    """An item to whose trace a span is linked."""

    @property
    def trace_context(self) -> bytes | None: ...


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

    def start(
        self,
        kind: OperationType,
        name: str,
        topics: Sequence[str],
        attributes: Mapping[str, Any] = _NO_ATTRIBUTES,
        linked_items: Sequence[TracedItem] = (),
        started_ns: int | None = None,
    ) -> Span:
        """Start a span, which its caller ends.

        Args:
            topics: the topics of the items of the operation, one for each item.
            attributes: further attributes of the span.
            linked_items: the span is linked to the spans that enqueued them.
            started_ns: the moment at which it began; None: now.
        """
        found = {**self._attributes, "messaging.operation.type": kind, "messaging.operation.name": name}
        if topics and topics.count(topics[0]) == len(topics):
            found["messaging.destination.name"] = topics[0]
            name = f"{name} {topics[0]}"
        if len(topics) > 1:
            found["messaging.batch.message_count"] = len(topics)
        return self._tracer.start_span(
            name,
            kind=self._trace.SpanKind[_SPAN_KINDS[kind]],
            attributes={**found, **attributes},
            links=self._links(linked_items),
            start_time=started_ns,
        )

    @contextmanager
    def current(
        self,
        kind: OperationType,
        name: str,
        topics: Sequence[str],
        attributes: Mapping[str, Any] = _NO_ATTRIBUTES,
        linked_items: Sequence[TracedItem] = (),
    ) -> Iterator[Span]:
        """Return a context manager of a span that is the current one. An error is recorded on it."""
        span = self.start(kind, name, topics, attributes, linked_items)
        with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                with tracer_errors_logged():
                    set_error(span, error)
                raise
            finally:
                with tracer_errors_logged():
                    span.end()

    def _links(self, items: Sequence[TracedItem]) -> list[Link]:
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


@contextmanager
def tracer_errors_logged() -> Iterator[None]:
    """Log an error of the tracer, such as that of an exporter: it must not change the result of a call or a handler."""
    try:
        yield
    except Exception:
        log.exception("a span could not be recorded")


def set_error(span: Span, error: BaseException) -> None:
    """Record the error with which an operation failed."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, safe_text(error)))


def traceparent_of(span: Span) -> bytes | None:
    """Return the W3C `traceparent` of a span; None if it has no valid context."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
