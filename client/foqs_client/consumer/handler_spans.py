"""The spans of a consumer's handlers.

Always true: the span of a handler is linked to the span that enqueued its item; a
worker process makes no spans, so the consumer makes them for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any

from foqs_client.consumer.handler_runners import OnDone
from foqs_client.consumer.job import Job
from foqs_client.tracing import Tracing, set_error, tracer_errors_logged

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class HandlerSpans:
    """Makes the spans of the handlers of one consumer."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def traced(self, handler: Callable[[Job], Any]) -> Callable[[Job], Any]:
        """Return a plain handler that runs in a span."""

        @wraps(handler)
        def run(job: Job) -> Any:
            with self._current(job):
                return handler(job)

        return run

    def traced_async(
        self, handler: Callable[[Job], Coroutine[Any, Any, Any]]
    ) -> Callable[[Job], Coroutine[Any, Any, Any]]:
        """Return an `async` handler that runs in a span."""

        @wraps(handler)
        async def run(job: Job) -> Any:
            with self._current(job):
                return await handler(job)

        return run

    def traced_end(self, job: Job, on_done: OnDone) -> OnDone:
        """Start the span of a handler in another process. Return a function that ends it and calls `on_done`."""
        span = self._tracing.start("process", "process", [job.topic], _attributes(job), [job])

        def end(job: Job, error: BaseException | None) -> None:
            with tracer_errors_logged():
                if error is not None:
                    set_error(span, error)
                span.end()
            on_done(job, error)

        return end

    def _current(self, job: Job) -> AbstractContextManager[Span]:
        return self._tracing.current("process", "process", [job.topic], _attributes(job), [job])


def _attributes(job: Job) -> dict[str, Any]:
    return {
        "messaging.message.id": job.id,
        "messaging.message.body.size": len(job.payload),
        "messaging.foqs.priority": job.priority,
        "messaging.foqs.attempt": job.attempt,
    }
