"""Three hosts, each killed once.

Every message gets to the dead letter queue, and back by a move task, exactly once. Message groups of FIFO queues stay in order.
"""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from foqs.dev.local_cluster import LocalCluster
from tests.support.cluster import cluster
from tests.support.poll import until
from tests.support.sqs_host import OPTIONS, sqs_client

pytestmark = [
    pytest.mark.process,
    pytest.mark.mysql,
    pytest.mark.zookeeper,
    pytest.mark.long,
    pytest.mark.timeout(600),
]

MESSAGES: Final = 400
RATE: Final = 40
GROUPS: Final = tuple(f"group-{number}" for number in range(6))
STEPS: Final = 60
VISIBILITY_S: Final = 30
"""Longer than a client waits for a reply: what it receives late is still its own."""


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    with cluster(shards=6, options={"cluster.session_timeout_ms": 6_000, **OPTIONS}, with_sqs=True) as found:
        until(lambda: all(host.is_ok("/readyz") for host in found.hosts), "every host takes calls", 60)
        yield found


def client(running: LocalCluster, host: int) -> Any:
    """Return a client that asks one host once, and gives up soon."""
    url = running.hosts[host].sqs_url
    assert url is not None
    return sqs_client(url, retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10)


def ask(running: LocalCluster, call: Callable[[Any], Any], first: int = 0) -> Any:
    """Return the answer of the first host that gives one. `first`: the host that is asked first."""
    answers: list[Any] = []

    def is_answered() -> bool:
        count = len(running.hosts)
        for turn in range(count):
            with suppress(BotoCoreError, ClientError):
                answers.append(call(client(running, (first + turn) % count)))
                return True
        return False

    until(is_answered, "a host answers", 60)
    return answers[0]


def counted(running: LocalCluster, queue: str) -> int:
    """Return how many messages of a queue wait, as one host knows it."""
    wanted = "ApproximateNumberOfMessages"
    found = ask(running, lambda sqs: sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[wanted]))
    return int(found["Attributes"][wanted])


def kill_each_host(running: LocalCluster, has_moved: Callable[[int], bool]) -> None:
    """Kill each host once, when more has happened since the last time, and start it again."""
    for number, host in enumerate(running.hosts, 1):
        until(lambda number=number: has_moved(number), "more is moved", 90)  # type: ignore[misc]
        host.send_signal(signal.SIGKILL)
        until(lambda host=host: host.exit_code is not None, "the host has ended", 30)  # type: ignore[misc]
        host.start()
        until(lambda host=host: host.is_ok("/readyz"), "the host takes calls again", 90)  # type: ignore[misc]


def receive_all(running: LocalCluster, queue: str) -> Counter[str]:
    """Receive and delete all messages; return how often each body came."""
    found: Counter[str] = Counter()

    def is_empty() -> bool:
        messages = ask(
            running,
            lambda sqs: sqs.receive_message(
                QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=600, WaitTimeSeconds=2
            ),
        ).get("Messages", [])
        found.update(message["Body"] for message in messages)
        return not messages

    until(is_empty, f"{queue} is empty", 120)
    return found


def test_each_message_is_moved_once_although_each_host_is_killed(running: LocalCluster) -> None:
    first = client(running, 0)
    dead = first.create_queue(QueueName="dead")["QueueUrl"]
    arn = first.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    first.create_queue(QueueName="mail", Attributes={"RedrivePolicy": policy})
    bodies = [f"message {place}" for place in range(MESSAGES)]
    for start in range(0, MESSAGES, 10):
        entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies[start : start + 10])]
        assert "Failed" not in first.send_message_batch(QueueUrl="mail", Entries=entries)
    done = threading.Event()

    def keep_receiving(host: int) -> None:
        sqs = client(running, host)
        while not done.is_set():
            with suppress(BotoCoreError, ClientError):
                sqs.receive_message(QueueUrl="mail", VisibilityTimeout=1, MaxNumberOfMessages=3, WaitTimeSeconds=1)

    threads = [threading.Thread(target=keep_receiving, args=(host,)) for host in range(3)]
    for thread in threads:
        thread.start()
    try:
        kill_each_host(running, lambda number: counted(running, "dead") >= 20 * number)
        until(lambda: counted(running, "dead") == MESSAGES, "all are dead letters", 120)
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    ask(running, lambda sqs: sqs.create_queue(QueueName="again"))
    task = {
        "SourceArn": arn,
        "DestinationArn": arn.replace(":dead", ":again"),
        "MaxNumberOfMessagesPerSecond": RATE,
    }
    ask(running, lambda sqs: sqs.start_message_move_task(**task))

    def status() -> str:
        found = ask(running, lambda sqs: sqs.list_message_move_tasks(SourceArn=arn))
        return str(found["Results"][0]["Status"])

    kill_each_host(running, lambda number: counted(running, "again") >= 10 * number)
    until(lambda: status() == "COMPLETED", "the task ends", 120)
    assert receive_all(running, "again") == Counter(bodies)
    until(lambda: counted(running, "dead") == counted(running, "mail") == 0, "nothing is left", 30)


@pytest.mark.parametrize("scope", ["queue", "messageGroup"])
def test_groups_of_a_fifo_queue_stay_in_order_although_each_host_is_killed(running: LocalCluster, scope: str) -> None:
    name = f"{scope}.fifo"
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "DeduplicationScope": scope}
    attributes = {**fifo, "VisibilityTimeout": str(VISIBILITY_S)}
    # Shards may still change their hosts after the kills of the test before.
    ask(running, lambda sqs: sqs.create_queue(QueueName=name, Attributes=attributes))
    hosts = range(len(running.hosts))
    until(lambda: all(name in str(client(running, host).list_queues()) for host in hosts), "all know the queue", 30)
    received: dict[str, list[int]] = {group: [] for group in GROUPS}
    """The steps of each group, as they were received."""

    def produce() -> None:
        for step in range(STEPS):
            entries = [{"Id": group, "MessageBody": f"{group} {step}", "MessageGroupId": group} for group in GROUPS]
            while entries:
                batch = {"QueueUrl": name, "Entries": entries}
                reply = ask(running, lambda sqs, batch=batch: sqs.send_message_batch(**batch), step)  # type: ignore[misc]
                failed = {entry["Id"] for entry in reply.get("Failed", [])}
                entries = [entry for entry in entries if entry["Id"] in failed]

    def consume(host: int) -> None:
        while not is_complete():
            found = ask(
                running,
                lambda sqs: sqs.receive_message(QueueUrl=name, MaxNumberOfMessages=3, WaitTimeSeconds=1),
                host,
            )
            for message in found.get("Messages", []):
                group, step = message["Body"].split()
                received[group].append(int(step))
                handle = message["ReceiptHandle"]
                ask(running, lambda sqs, h=handle: sqs.delete_message(QueueUrl=name, ReceiptHandle=h), host)  # type: ignore[misc]

    def is_complete() -> bool:
        return all(STEPS - 1 in steps for steps in received.values())

    def count() -> int:
        return sum(map(len, received.values()))

    threads = [threading.Thread(target=produce), *(threading.Thread(target=consume, args=(host,)) for host in hosts)]
    for thread in threads:
        thread.start()
    kill_each_host(running, lambda number: count() >= number * len(GROUPS) * STEPS // 5)
    until(is_complete, "each group is received to its end", 300)
    for thread in threads:
        thread.join(90)
    assert not any(thread.is_alive() for thread in threads)
    for steps in received.values():
        assert sorted(set(steps)) == list(range(STEPS)), "each message"
        first = [*dict.fromkeys(steps)]
        assert first == sorted(first), "no message is received before the one before it"
        # A receive whose reply was lost, or whose deletions came too late, is repeated from its first message on.
        backwards = sum(step > following for step, following in pairwise(steps))
        assert backwards <= len(steps) - STEPS
    until(lambda: counted(running, name) == 0, "nothing is left", 60)
