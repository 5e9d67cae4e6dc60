"""Dead letters through boto3: poison messages end in the dead letter queue, each once, also if hosts are killed."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from foqs_client import Client, Nack
from tests.support.aio import run
from tests.support.poll import until
from tests.support.sqs_host import SqsHost, sqs_client

pytestmark = [pytest.mark.process]

POISON_COUNT: Final = 300
PATIENT: Final[dict[str, Any]] = {"retries": {"total_max_attempts": 30, "mode": "standard"}}


def make_queues(sqs: Any, name: str, receives_max: int) -> tuple[str, str]:
    """Create a queue and its dead letter queue; return their URLs."""
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives_max})
    return sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"], dead


def receive_all(sqs: Any, queue: str) -> Counter[str]:
    """Receive and delete until the queue is empty; return how often each body came."""
    found: Counter[str] = Counter()
    while messages := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages"):
        found.update(message["Body"] for message in messages)
        for message in messages:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    return found


def test_a_poison_message_is_in_the_dead_letter_queue_after_the_receive_that_finds_it(sqs: Any) -> None:
    queue, dead = make_queues(sqs, "poisoned", 2)
    sent = sqs.send_message(QueueUrl=queue, MessageBody="poison")["MessageId"]
    receipts = []
    for _ in range(2):
        (message,) = sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0, WaitTimeSeconds=10)["Messages"]
        receipts.append(message["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    found = sqs.receive_message(QueueUrl=dead, MessageSystemAttributeNames=["All"])
    (letter,) = found["Messages"]
    assert (letter["MessageId"], letter["Body"]) == (sent, "poison")
    assert letter["Attributes"]["DeadLetterQueueSourceArn"].endswith(":poisoned")
    assert letter["Attributes"]["ApproximateReceiveCount"] == "3"
    assert letter["ReceiptHandle"] not in receipts
    sqs.delete_message(QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"])
    assert receive_all(sqs, dead) == Counter()
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]


def test_items_that_a_native_consumer_gives_up_get_there_too(host: SqsHost, sqs: Any) -> None:
    queue, dead = make_queues(sqs, "given-up", 5)
    sqs.send_message(QueueUrl=queue, MessageBody="native")

    async def give_up() -> None:
        async with Client(host.address) as client:
            (item,) = await client.dequeue({"given-up": 1}, wait_ms=5_000)
            await client.nack([Nack(item.id, item.token, dead=True)])

    run(give_up())
    (letter,) = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20)["Messages"]
    assert letter["Body"] == "native"


@pytest.mark.timeout(300)
def test_each_poison_message_is_there_once_although_the_host_is_killed_three_times(tmp_path: Path) -> None:
    with SqsHost(tmp_path) as host:
        host.start()
        sqs = sqs_client(host.endpoint, **PATIENT)
        queue, dead = make_queues(sqs, "mail", 1)
        bodies = [f"message {place}" for place in range(POISON_COUNT)]
        for start in range(0, POISON_COUNT, 10):
            entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies[start : start + 10])]
            assert "Failed" not in sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        done = threading.Event()
        received: Counter[str] = Counter()

        def keep_receiving() -> None:
            client = sqs_client(host.endpoint, **PATIENT)
            while not done.is_set():
                found = client.receive_message(QueueUrl=queue, VisibilityTimeout=1, MaxNumberOfMessages=5)
                received.update(message["Body"] for message in found.get("Messages", ()))

        def letters() -> int:
            wanted = ["ApproximateNumberOfMessages"]
            found = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=wanted)["Attributes"]
            return int(found[wanted[0]])

        threads = [threading.Thread(target=keep_receiving) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for kill in range(3):
                until(lambda kill=kill: letters() >= 20 * (kill + 1), "letters are moved", 120)  # type: ignore[misc]
                host.kill9()
                host.start()
            until(lambda: letters() == POISON_COUNT, "all are moved", 120)
        finally:
            done.set()
            for thread in threads:
                thread.join(120)
        assert receive_all(sqs, dead) == Counter(bodies)
        assert receive_all(sqs, queue) == Counter()
        assert set(received.values()) <= {1}, "a message was received more often than the policy says"


def make_letters(sqs: Any, queue: str, dead: str, count: int) -> list[str]:
    """Send messages and receive them until all of them are in the dead letter queue; return their bodies."""
    bodies = [f"message {place}" for place in range(count)]
    for start in range(0, count, 10):
        entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies[start : start + 10])]
        assert "Failed" not in sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    def all_are_moved() -> bool:
        sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0, MaxNumberOfMessages=10)
        return waiting(sqs, dead) == count

    until(all_are_moved, "all are dead letters", 120)
    return bodies


def waiting(sqs: Any, queue: str) -> int:
    wanted = "ApproximateNumberOfMessages"
    return int(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[wanted])["Attributes"][wanted])


def task_of(sqs: Any, arn: str) -> Any:
    return sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]


def arn_of(sqs: Any, queue: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def test_a_move_task_brings_dead_letters_back_as_new_messages(sqs: Any) -> None:
    queue, dead = make_queues(sqs, "redriven", 1)
    bodies = make_letters(sqs, queue, dead, 40)
    arn = arn_of(sqs, dead)
    sqs.start_message_move_task(SourceArn=arn)
    until(lambda: task_of(sqs, arn)["Status"] == "COMPLETED", "the task ends", 120)
    task = task_of(sqs, arn)
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (40, 40)
    assert waiting(sqs, dead) == 0
    (message,) = sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]
    assert message["Body"] in bodies


def test_a_move_task_keeps_its_rate_and_is_cancelled(sqs: Any) -> None:
    queue, dead = make_queues(sqs, "slow", 1)
    other = sqs.create_queue(QueueName="slow-other")["QueueUrl"]
    make_letters(sqs, queue, dead, 30)
    arn = arn_of(sqs, dead)
    started = {"SourceArn": arn, "DestinationArn": arn_of(sqs, other), "MaxNumberOfMessagesPerSecond": 1}
    handle = sqs.start_message_move_task(**started)["TaskHandle"]
    with pytest.raises(sqs.exceptions.ClientError, match="already a task running"):
        sqs.start_message_move_task(**started)
    until(lambda: waiting(sqs, other) >= 2, "some are moved", 120)
    assert task_of(sqs, arn)["TaskHandle"] == handle
    sqs.cancel_message_move_task(TaskHandle=handle)
    until(lambda: task_of(sqs, arn)["Status"] == "CANCELLED", "the task ends", 120)
    assert waiting(sqs, other) + waiting(sqs, dead) == 30
    assert 2 <= waiting(sqs, other) < 30
    sqs.start_message_move_task(SourceArn=arn, DestinationArn=arn_of(sqs, other))
    until(lambda: waiting(sqs, other) == 30, "the others are moved", 120)


@pytest.mark.timeout(240)
def test_a_move_task_goes_on_after_its_host_was_killed_and_moves_each_message_once(tmp_path: Path) -> None:
    with SqsHost(tmp_path) as host:
        host.start()
        sqs = sqs_client(host.endpoint, **PATIENT)
        queue, dead = make_queues(sqs, "mail", 1)
        other = sqs.create_queue(QueueName="other")["QueueUrl"]
        bodies = make_letters(sqs, queue, dead, 120)
        arn = arn_of(sqs, dead)
        sqs.start_message_move_task(SourceArn=arn, DestinationArn=arn_of(sqs, other), MaxNumberOfMessagesPerSecond=30)
        for moved in (10, 50):
            until(lambda moved=moved: waiting(sqs, other) >= moved, "some are moved", 120)  # type: ignore[misc]
            host.kill9()
            host.start()
        until(lambda: task_of(sqs, arn)["Status"] == "COMPLETED", "the task ends", 120)
        assert receive_all(sqs, other) == Counter(bodies)
        assert receive_all(sqs, dead) == Counter()
