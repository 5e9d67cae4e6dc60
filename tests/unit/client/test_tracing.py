"""Tests of the client's spans: their names are those of the conventions, and consumers are linked to producers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from foqs.testing import FakeHost
from foqs_client import Client, Delivery, Item, Nack, StaleLease, SyncClient, Unavailable
from foqs_client.background_loop import BackgroundLoop
from foqs_client.call_spans import CallSpans
from foqs_client.consumer import Consumer, Job, Retry
from foqs_client.consumer.handler_spans import HandlerSpans
from foqs_client.tracing import make_tracing
from tests.support.consumer_stories import until
from tests.support.virtual_time import run_virtual

Story = Callable[[FakeHost, Client, Callable[[], list[ReadableSpan]]], Coroutine[Any, Any, None]]
TYPES = names.MessagingOperationTypeValues


def exported(provider: TracerProvider) -> Callable[[], list[ReadableSpan]]:
    """Return a function that returns the ended spans since its last call."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def ended() -> list[ReadableSpan]:
        spans = list(exporter.get_finished_spans())
        exporter.clear()
        return spans

    return ended


def handler_spans(provider: TracerProvider) -> HandlerSpans:
    tracing = make_tracing(provider, "default", None)
    assert tracing is not None
    return HandlerSpans(tracing)


def play(story: Story) -> None:
    """Run a story on a host under virtual time, with a client that makes spans."""

    async def main() -> None:
        provider = TracerProvider()
        async with FakeHost() as fake:
            await story(fake, fake.client(tracing=provider), exported(provider))

    run_virtual(main, until_s=3_600.0)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes that depend on the call."""
    found = dict(span.attributes or {})
    assert found.pop(names.MESSAGING_SYSTEM) == "foqs"
    assert found.pop("messaging.foqs.namespace") == "default"
    assert found.pop(server_attributes.SERVER_ADDRESS)
    assert found.pop(server_attributes.SERVER_PORT)
    return found


def linked_ids(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def test_send_receive_and_settle_have_the_names_of_the_conventions() -> None:
    async def story(fake: FakeHost, client: Client, ended: Callable[[], list[ReadableSpan]]) -> None:
        [sent] = await client.enqueue([Item("mail", b"hello", priority=3)])
        [send] = ended()
        assert (send.name, send.kind) == ("enqueue mail", SpanKind.PRODUCER)
        assert attributes(send) == {
            names.MESSAGING_OPERATION_TYPE: TYPES.SEND.value,
            names.MESSAGING_OPERATION_NAME: "enqueue",
            names.MESSAGING_DESTINATION_NAME: "mail",
            names.MESSAGING_MESSAGE_ID: sent.id,
            names.MESSAGING_MESSAGE_BODY_SIZE: 5,
            "messaging.foqs.priority": 3,
        }
        assert await client.dequeue({"other": 1}) == []
        assert ended() == []
        [delivery] = await client.dequeue({"mail": 10})
        assert delivery.trace_context is not None
        carrier = {"traceparent": delivery.trace_context.decode()}
        carried = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
        assert send.context is not None
        assert (carried.trace_id, carried.span_id) == (send.context.trace_id, send.context.span_id)
        assert carried.trace_flags.sampled
        [receive] = ended()
        assert (receive.name, receive.kind) == ("dequeue mail", SpanKind.CLIENT)
        assert attributes(receive) == {
            names.MESSAGING_OPERATION_TYPE: TYPES.RECEIVE.value,
            names.MESSAGING_OPERATION_NAME: "dequeue",
            names.MESSAGING_DESTINATION_NAME: "mail",
            names.MESSAGING_MESSAGE_ID: sent.id,
        }
        assert linked_ids(receive) == [span_id(send)]
        await client.ack([delivery])
        [settle] = ended()
        assert (settle.name, settle.kind) == ("ack mail", SpanKind.CLIENT)
        assert attributes(settle) == {
            names.MESSAGING_OPERATION_TYPE: TYPES.SETTLE.value,
            names.MESSAGING_OPERATION_NAME: "ack",
            names.MESSAGING_DESTINATION_NAME: "mail",
            names.MESSAGING_MESSAGE_ID: sent.id,
        }
        assert linked_ids(settle) == [span_id(send)]

    play(story)


def test_batches_have_their_count_and_a_topic_only_if_it_is_one() -> None:
    async def story(fake: FakeHost, client: Client, ended: Callable[[], list[ReadableSpan]]) -> None:
        await client.enqueue([Item("mail", b"a"), Item("mail", b"b")])
        await client.enqueue([Item("sms", b"c"), Item("mail", b"d")])
        one, both = ended()
        assert (one.name, both.name) == ("enqueue mail", "enqueue")
        for span in (one, both):
            assert attributes(span)[names.MESSAGING_BATCH_MESSAGE_COUNT] == 2
            assert names.MESSAGING_MESSAGE_ID not in attributes(span)
        assert names.MESSAGING_DESTINATION_NAME not in attributes(both)
        deliveries = await client.dequeue({"mail": 9, "sms": 9})
        await client.release(deliveries[:2])
        await client.nack([Nack(delivery.id, delivery.token) for delivery in deliveries[2:]])
        receive, release, nack = ended()
        assert (receive.name, release.name, nack.name) == ("dequeue", "release mail", "nack")
        assert sorted(linked_ids(receive)) == sorted([span_id(one), span_id(both)])
        assert [attributes(span)[names.MESSAGING_BATCH_MESSAGE_COUNT] for span in (receive, release, nack)] == [4, 2, 2]

    play(story)


def test_caller_keeps_its_own_trace_context_and_foreign_bytes_are_no_link() -> None:
    async def story(fake: FakeHost, client: Client, ended: Callable[[], list[ReadableSpan]]) -> None:
        given = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
        await client.enqueue([Item("mail", b"a", trace_context=given)])
        for foreign in (
            b"\xff\x00",
            b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
            given[:-1],
            b"ff" + given[2:],
        ):
            await client.enqueue([Item("sms", b"b", trace_context=foreign)])
        ended()
        [delivery] = await client.dequeue({"mail": 1})
        assert delivery.trace_context == given
        await client.dequeue({"sms": 9})
        mail, sms = ended()
        assert linked_ids(mail) == [0xB7AD6B7169203331]
        assert mail.links[0].context.is_remote
        assert linked_ids(sms) == []

    play(story)


def test_error_of_a_call_and_of_an_item_is_on_the_span() -> None:
    async def story(fake: FakeHost, client: Client, ended: Callable[[], list[ReadableSpan]]) -> None:
        [result] = await client.enqueue([Item("mail", b"x" * 20_000)])
        assert result.error is not None
        await client.enqueue([Item("mail", b"a")])
        [delivery] = await client.dequeue({"mail": 1}, lease_ms=1_000)
        await fake.advance(2_000)
        [_] = await client.dequeue({"mail": 1})
        [outcome] = await client.ack([delivery])
        assert isinstance(outcome.error, StaleLease)
        async with fake.client(namespace="nowhere", tracing=False) as other:
            assert other.tracing is None
        send, *_, settle = ended()
        for span, error in ((send, "LimitExceeded"), (settle, "StaleLease")):
            assert attributes(span)[error_attributes.ERROR_TYPE] == error
            assert span.status.status_code is StatusCode.ERROR

    play(story)


@pytest.mark.parametrize("is_async", [True, False])
def test_handler_runs_in_a_span_that_is_linked_to_its_producer(is_async: bool) -> None:
    async def story(fake: FakeHost, client: Client, ended: Callable[[], list[ReadableSpan]]) -> None:
        [sent] = await client.enqueue([Item("mail", b"hello", priority=-1)])
        [send] = ended()
        seen: list[int] = []

        def work(job: Job) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            if job.attempt == 1:
                raise Retry(0)

        async def work_async(job: Job) -> None:
            work(job)

        consumer = Consumer(client, work_async if is_async else work, ["mail"], concurrency=1)
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: consumer.counts.done == 1)
        consumer.stop()
        await running
        spans = ended()
        processed = [span for span in spans if span.name == "process mail"]
        assert [span_id(span) for span in processed] == seen
        assert [span.kind for span in processed] == [SpanKind.CONSUMER] * 2
        assert [linked_ids(span) for span in processed] == [[span_id(send)]] * 2
        failed, done = processed
        assert attributes(failed).pop(error_attributes.ERROR_TYPE) == "Retry"
        assert attributes(done) == {
            names.MESSAGING_OPERATION_TYPE: TYPES.PROCESS.value,
            names.MESSAGING_OPERATION_NAME: "process",
            names.MESSAGING_DESTINATION_NAME: "mail",
            names.MESSAGING_MESSAGE_ID: sent.id,
            names.MESSAGING_MESSAGE_BODY_SIZE: 5,
            "messaging.foqs.priority": -1,
            "messaging.foqs.attempt": 2,
        }
        settled = [span.name for span in spans if attributes(span)[names.MESSAGING_OPERATION_TYPE] == "settle"]
        assert settled == ["nack", "ack mail"]

    play(story)


def test_handler_in_a_process_has_a_span_until_it_ends() -> None:
    provider = TracerProvider()
    ended = exported(provider)
    spans = handler_spans(provider)
    ends: list[tuple[Job, BaseException | None]] = []
    job = Job(Delivery("3-1", 7, "mail", payload=b"x", attempt=1), lambda *_: None)
    on_done = spans.traced_end(job, lambda job, error: ends.append((job, error)))
    assert ended() == []
    error = ValueError("no")
    on_done(job, error)
    [span] = ended()
    assert (span.name, span.kind, span.status.status_code) == ("process mail", SpanKind.CONSUMER, StatusCode.ERROR)
    assert ends == [(job, error)]


def test_span_that_cannot_be_ended_changes_no_result(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise ConnectionError("no collector")

    provider = TracerProvider()
    provider.add_span_processor(Failing())
    tracing = make_tracing(provider, "default", None)
    assert tracing is not None
    handlers, calls = HandlerSpans(tracing), CallSpans(tracing)
    ends: list[BaseException | None] = []
    job = Job(Delivery("3-1", 7, "mail"), lambda *_: None)
    handlers.traced_end(job, lambda job, error: ends.append(error))(job, None)
    assert ends == [None]
    assert handlers.traced(lambda job: job.topic)(job) == "mail"
    with calls.receive() as received:
        received.deliveries = [Delivery("3-1", 7, "mail")]
    with pytest.raises(Unavailable), calls.receive():
        raise Unavailable("not now")
    assert caplog.text.count("a span could not be recorded") == 4


def test_error_whose_text_raises_is_on_the_span_and_stays_the_error() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    provider = TracerProvider()
    ended = exported(provider)
    spans = handler_spans(provider)

    def handle(job: Job) -> None:
        raise Unreadable

    with pytest.raises(Unreadable):
        spans.traced(handle)(Job(Delivery("3-1", 7, "mail"), lambda *_: None))
    [span] = ended()
    assert (span.attributes or {})["error.type"] == Unreadable.__qualname__
    assert span.status.description == "(its text cannot be read: ValueError)"


def test_parent_of_a_span_is_the_callers_span_also_from_another_thread() -> None:
    """The synchronous client runs calls in a thread of its own."""
    provider = TracerProvider()
    ended = exported(provider)

    class Traced(Client):
        async def routing(self, **_: Any) -> Any:
            assert self._spans is not None
            with self._spans.receive() as call:
                call.deliveries = [Delivery("3-1", 7, "mail")]

    traced = Traced("foqs://127.0.0.1:1", tracing=provider)
    with (
        SyncClient.wrap(traced, BackgroundLoop("test")) as client,
        provider.get_tracer("test").start_as_current_span("mine") as mine,
    ):
        client._run(traced.routing)
    receive, _ = ended()
    assert receive.parent is not None
    assert receive.parent.span_id == mine.get_span_context().span_id


def test_span_that_is_not_sampled_is_carried_as_such() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            client = fake.client(tracing=TracerProvider(sampler=ALWAYS_OFF))
            await client.enqueue([Item("mail", b"a")])
            [delivery] = await client.dequeue({"mail": 1})
            assert delivery.trace_context is not None
            assert not int(delivery.trace_context.rsplit(b"-", 1)[1], 16) & trace.TraceFlags.SAMPLED

    run_virtual(main, until_s=3_600.0)


def test_without_a_tracer_provider_there_is_no_tracing() -> None:
    assert make_tracing(trace.NoOpTracerProvider(), "default", None) is None
    assert make_tracing(choice=False, namespace="default", server=None) is None
    program = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from foqs_client import Client
assert Client("foqs://127.0.0.1:1").tracing is None
trace.set_tracer_provider(TracerProvider())
assert Client("foqs://127.0.0.1:1").tracing is not None
assert Client("foqs://127.0.0.1:1", tracing=False).tracing is None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_client_works_without_opentelemetry() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from foqs_client import Client
import foqs_client.consumer
client = Client("foqs://127.0.0.1:1")
assert client.tracing is None
assert not [name for name in sys.modules if name.startswith("opentelemetry.")]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
