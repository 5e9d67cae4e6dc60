"""Messages through boto3: what is sent is received, and receipts do what SQS says."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from foqs_client import Client, Item
from tests.support.aio import run
from tests.support.poll import until
from tests.support.sqs_host import SqsHost, sqs_client

pytestmark = [pytest.mark.process]

TRACE_NAME, TRACE = "X-Amzn-Trace-Id", "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
CLOCKS_MS = 1_000
"""A shard's clock and the system's may differ by less."""


def receive(sqs: Any, queue: str, **more: Any) -> list[Any]:
    found = sqs.receive_message(
        QueueUrl=queue, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"], **more
    )
    return list(found.get("Messages", []))


def receive_one(sqs: Any, queue: str, **more: Any) -> Any:
    """Return the only message; waits for it."""
    (message,) = receive(sqs, queue, WaitTimeSeconds=10, MaxNumberOfMessages=10, **more)
    return message


def number(value: int) -> dict[str, str]:
    return {"DataType": "Number", "StringValue": str(value)}


def test_a_message_is_received_as_it_was_sent(sqs: Any, queue: str) -> None:
    attributes = {
        "text": {"DataType": "String.custom", "StringValue": "grüße\t\r\n"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
        "count": number(12),
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}}
    before_ms = time.time() * 1_000
    sent = sqs.send_message(
        QueueUrl=queue,
        MessageBody="grüße 😀 < & >",
        MessageAttributes=attributes,
        MessageSystemAttributes=trace,
        MessageGroupId="tenant",
    )
    got = receive_one(sqs, queue)
    assert (got["Body"], got["MessageId"]) == ("grüße 😀 < & >", sent["MessageId"])
    assert got["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert got["MessageAttributes"] == attributes
    system = got["Attributes"]
    assert (system["AWSTraceHeader"], system["MessageGroupId"]) == ("Root=1-2-3", "tenant")
    assert (system["SenderId"], system["ApproximateReceiveCount"]) == ("anonymous", "1")
    assert before_ms - CLOCKS_MS <= int(system["SentTimestamp"]) <= time.time() * 1_000 + CLOCKS_MS
    assert int(system["SentTimestamp"]) <= int(system["ApproximateFirstReceiveTimestamp"]) + 5


def test_a_message_may_have_a_mebibyte(sqs: Any, queue: str) -> None:
    body = "é" * (1_048_576 // 2)
    sqs.send_message(QueueUrl=queue, MessageBody=body)
    assert receive_one(sqs, queue)["Body"] == body
    with pytest.raises(sqs.exceptions.ClientError, match="Message must be shorter than 1048576 bytes"):
        sqs.send_message(QueueUrl=queue, MessageBody=body + "x")


def test_the_first_receive_keeps_its_time(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    first = receive_one(sqs, queue, VisibilityTimeout=2)
    second = receive_one(sqs, queue)  # two seconds later
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    times = [int(one["Attributes"]["ApproximateFirstReceiveTimestamp"]) for one in (first, second)]
    assert abs(times[0] - times[1]) < 1_000
    assert first["ReceiptHandle"] != second["ReceiptHandle"]


def test_priorities_order_a_queue(sqs: Any, queue: str) -> None:
    for priority in (5, -3, 0):
        sqs.send_message(
            QueueUrl=queue, MessageBody=str(priority), MessageAttributes={"foqs.priority": number(priority)}
        )
    assert [receive_one_of(sqs, queue)["Body"] for _ in range(3)] == ["-3", "0", "5"]


def receive_one_of(sqs: Any, queue: str, **more: Any) -> Any:
    (message,) = receive(sqs, queue, WaitTimeSeconds=10, **more)
    return message


def test_the_priority_of_a_queue_is_a_tag(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="first")
    sqs.tag_queue(QueueUrl=queue, Tags={"foqs:priority": "-1"})
    sqs.send_message(QueueUrl=queue, MessageBody="better")
    assert receive_one_of(sqs, queue)["Body"] == "better"


def test_delays_and_lives_may_be_given_in_milliseconds(sqs: Any, queue: str) -> None:
    long_ms = 30 * 86_400_000
    sqs.send_message(
        QueueUrl=queue,
        MessageBody="much later",
        MessageAttributes={"foqs.delay_ms": number(long_ms), "foqs.ttl_ms": number(2 * long_ms)},
    )
    sqs.send_message(QueueUrl=queue, MessageBody="soon", MessageAttributes={"foqs.delay_ms": number(50)})
    sqs.send_message(QueueUrl=queue, MessageBody="gone", MessageAttributes={"foqs.ttl_ms": number(1)})
    assert receive_one(sqs, queue)["Body"] == "soon"
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesDelayed"] == "1"
    for name, value in (("foqs.priority", 1 << 31), ("foqs.delay_ms", -1), ("foqs.ttl_ms", 0), ("foqs.other", 1)):
        with pytest.raises(sqs.exceptions.ClientError, match=name):
            sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes={name: number(value)})


def test_a_receipt_deletes_after_its_lease_until_the_message_is_received_again(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    first = receive_one(sqs, queue, VisibilityTimeout=0)
    second = receive_one(sqs, queue, VisibilityTimeout=30)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "1", "the other consumer's message was deleted"
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
    assert receive(sqs, queue) == []


def test_a_late_heartbeat_keeps_other_consumers_away(sqs: Any, queue: str) -> None:
    sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": name, "MessageBody": name} for name in ("a", "b")])
    handles = [receive_one_of(sqs, queue, VisibilityTimeout=600)["ReceiptHandle"] for _ in range(2)]
    # Not by the receives: the first message could come again before the second one was received.
    ends = [{"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": 1} for place, handle in enumerate(handles)]
    assert "Failed" not in sqs.change_message_visibility_batch(QueueUrl=queue, Entries=ends)
    until(lambda: visible_count(sqs, queue) == 2, "both visibility timeouts have ended")
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handles[0], VisibilityTimeout=60)
    entry = {"Id": "b", "ReceiptHandle": handles[1], "VisibilityTimeout": 60}
    assert "Failed" not in sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[entry])
    assert receive(sqs, queue, MaxNumberOfMessages=10) == []
    for handle in handles:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    again = receive(sqs, queue, MaxNumberOfMessages=10)
    assert [message["Attributes"]["ApproximateReceiveCount"] for message in again] == ["2", "2"]


def visible_count(sqs: Any, queue: str) -> int:
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])
    return int(found["Attributes"]["ApproximateNumberOfMessages"])


def test_the_trace_of_a_request_is_that_of_its_messages(host: SqsHost, queue: str) -> None:
    client = sqs_client(host.endpoint)
    client.meta.events.register("before-send.sqs", lambda request, **_: request.headers.update({TRACE_NAME: TRACE}))
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-own"}}
    client.send_message(QueueUrl=queue, MessageBody="one")
    entries = [{"Id": "a", "MessageBody": "two"}, {"Id": "b", "MessageBody": "three", "MessageSystemAttributes": own}]
    client.send_message_batch(QueueUrl=queue, Entries=entries)
    found = [receive_one_of(client, queue) for _ in range(3)]
    traces = {message["Body"]: message["Attributes"]["AWSTraceHeader"] for message in found}
    assert traces == {"one": TRACE, "two": TRACE, "three": "Root=1-own"}


def test_a_superseded_receipt_changes_no_visibility(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    first = receive_one(sqs, queue, VisibilityTimeout=0)
    receive_one(sqs, queue)
    for seconds in (0, 60):
        with pytest.raises(sqs.exceptions.ClientError, match="not available for visibility timeout change"):
            sqs.change_message_visibility(
                QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=seconds
            )


def test_a_receipt_belongs_to_one_queue(sqs: Any, queue: str) -> None:
    other = sqs.create_queue(QueueName="another-queue")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    message = receive_one(sqs, queue)
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=other, ReceiptHandle=message["ReceiptHandle"])


def test_entries_of_batches_fail_alone(sqs: Any, queue: str) -> None:
    sent = sqs.send_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "good", "MessageBody": "x"},
            {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
            {"Id": "bad", "MessageBody": "\x00"},
        ],
    )
    assert [entry["Id"] for entry in sent["Successful"]] == ["good"]
    assert [(entry["Id"], entry["Code"]) for entry in sent["Failed"]] == [
        ("late", "InvalidParameterValue"),
        ("bad", "InvalidMessageContents"),
    ]
    handle = receive_one(sqs, queue)["ReceiptHandle"]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 60},
            {"Id": "b", "ReceiptHandle": handle, "VisibilityTimeout": 70},
            {"Id": "c", "ReceiptHandle": "x", "VisibilityTimeout": 60},
        ],
    )
    assert [entry["Id"] for entry in changed["Successful"]] == ["a", "b"]
    assert [entry["Code"] for entry in changed["Failed"]] == ["ReceiptHandleIsInvalid"]
    entries = [{"Id": name, "ReceiptHandle": handle} for name in ("a", "b")]
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert len(deleted["Successful"]) == 2


def test_a_long_poll_gets_a_message_that_comes(sqs: Any, queue: str) -> None:
    got: list[Any] = []
    poll = threading.Thread(target=lambda: got.append(receive_one(sqs, queue)))
    poll.start()
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    poll.join(30)
    assert got[0]["Body"] == "x"


def test_a_poll_whose_client_leaves_takes_no_message(host: SqsHost, sqs: Any, queue: str) -> None:
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    with socket.create_connection(("127.0.0.1", host.sqs_port)) as connection:
        connection.sendall(
            b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
            b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        until(lambda: waiting_dequeues(host) == 1, "the poll waits")
    until(lambda: waiting_dequeues(host) == 0, "the poll has ended")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    assert receive_one(sqs, queue)["Attributes"]["ApproximateReceiveCount"] == "1"


def waiting_dequeues(host: SqsHost) -> int | None:
    """Return how many dequeues wait; None if the host does not answer in time."""
    answer = host.get("/metrics")
    if answer is None:
        return None
    (line,) = [line for line in answer[1].splitlines() if line.startswith("foqs_waiting_dequeues ")]
    return int(float(line.split()[1]))


def test_items_of_other_producers_are_messages_and_messages_are_items(host: SqsHost, sqs: Any, queue: str) -> None:
    topic = queue.rpartition("/")[2]

    async def enqueue(*payloads: bytes) -> None:
        async with Client(host.address) as client:
            await client.enqueue([Item(topic, payload) for payload in payloads])

    run(enqueue("grüße".encode(), b"\xff\x00"))
    bodies: dict[str, Any] = {}
    while len(bodies) < 2:
        for message in receive(sqs, queue, WaitTimeSeconds=10, MaxNumberOfMessages=10):
            bodies[message["Body"]] = message.get("MessageAttributes")
    assert bodies == {"grüße": None, "/wA=": {"foqs.encoding": {"DataType": "String", "StringValue": "base64"}}}
