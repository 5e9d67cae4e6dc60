"""Three hosts: any of them answers any action, and forwards it as it forwards a call over Thrift."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from foqs.dev.host_process import HostProcess
from tests.support.cluster import cluster
from tests.support.poll import until
from tests.support.single_endpoint_client import SingleEndpointClient
from tests.support.sqs_host import OPTIONS, sqs_client

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

SHARDS = 6


@pytest.fixture(scope="module")
def clients() -> Iterator[list[Any]]:
    """Yield a client of each host. Each host has its part of the shards."""
    with cluster(shards=SHARDS, options={"server.sqs_port": 0, **OPTIONS}) as found:
        until(lambda: all(host.is_ok("/readyz") for host in found.hosts), "every host takes calls", 120)
        with SingleEndpointClient(found.hosts[0].address) as client:
            part = SHARDS // len(found.hosts)
            until(lambda: sorted(Counter(client.owners().values()).values()) == [part] * 3, "each has its part", 120)
        yield [sqs_client(endpoint(host)) for host in found.hosts]


def endpoint(host: HostProcess) -> str:
    """Return the endpoint URL that a host has logged."""
    lines = map(json.loads, (host.folder / "log").read_text().splitlines())
    return str(next(line["sqs"] for line in lines if line["message"] == "listening"))


def test_a_queue_and_its_messages_are_those_of_all_hosts(clients: list[Any]) -> None:
    first, second, third = clients
    name = "mail"
    first.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "600"})
    urls = [client.get_queue_url(QueueName=name)["QueueUrl"] for client in clients]
    sent = {}
    for place in range(60):
        body = f"message {place}"
        sent[body] = clients[place % 3].send_message(QueueUrl=urls[place % 3], MessageBody=body)["MessageId"]
    shards = {text[9:13] for text in sent.values()}
    assert len(shards) > SHARDS // 3, "messages of other hosts' shards"

    got: dict[str, Any] = {}
    while len(got) < len(sent):
        found = second.receive_message(QueueUrl=urls[1], MaxNumberOfMessages=10, WaitTimeSeconds=20)["Messages"]
        got |= {message["Body"]: message for message in found}
    assert {body: message["MessageId"] for body, message in got.items()} == sent
    handles = [message["ReceiptHandle"] for message in got.values()]
    for start in range(0, 60, 10):
        entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles[start : start + 10])]
        visible = [{**entry, "VisibilityTimeout": 900} for entry in entries]
        assert "Failed" not in first.change_message_visibility_batch(QueueUrl=urls[0], Entries=visible)
        assert "Failed" not in third.delete_message_batch(QueueUrl=urls[2], Entries=entries)

    def counts(client: Any, url: str) -> list[str]:
        wanted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=wanted)["Attributes"]
        return [found[name] for name in wanted]

    for client, url in zip(clients, urls, strict=True):
        until(lambda client=client, url=url: counts(client, url) == ["0", "0"], "nothing is left")  # type: ignore[misc]


def test_a_poll_at_one_host_gets_a_message_that_is_sent_at_another(clients: list[Any]) -> None:
    first, second, third = clients
    queue = first.create_queue(QueueName="polled")["QueueUrl"]
    for sender in (second, third):
        sender.send_message(QueueUrl="polled", MessageBody="x")
        (message,) = first.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
        first.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_a_purge_and_a_deletion_are_those_of_all_hosts(clients: list[Any]) -> None:
    first, second, third = clients
    queue = first.create_queue(QueueName="purged")["QueueUrl"]
    for client in clients * 5:
        client.send_message(QueueUrl="purged", MessageBody="x")
    second.purge_queue(QueueUrl="purged")
    assert "Messages" not in third.receive_message(QueueUrl="purged", WaitTimeSeconds=2)
    third.delete_queue(QueueUrl="purged")
    until(lambda: "purged" not in str(first.list_queues().get("QueueUrls")), "the deletion is known everywhere")
    with pytest.raises(first.exceptions.QueueDoesNotExist):
        first.send_message(QueueUrl=queue, MessageBody="x")


def test_dead_letters_of_all_shards_are_moved_once_whichever_host_finds_them(clients: list[Any]) -> None:
    first = clients[0]
    dead = first.create_queue(QueueName="letters")["QueueUrl"]
    arn = first.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    first.create_queue(QueueName="poisoned", Attributes={"RedrivePolicy": policy})
    bodies = [f"message {place}" for place in range(60)]
    for place, body in enumerate(bodies):
        clients[place % 3].send_message(QueueUrl="poisoned", MessageBody=body)
    received: Counter[str] = Counter()

    def all_are_moved() -> bool:
        for client in clients:
            found = client.receive_message(QueueUrl="poisoned", VisibilityTimeout=1, MaxNumberOfMessages=10)
            received.update(message["Body"] for message in found.get("Messages", ()))
        return waiting(first, "letters") == len(bodies)

    until(all_are_moved, "all are moved", 120)
    assert received == Counter(bodies)
    letters: Counter[str] = Counter()

    def receive() -> Any:
        return clients[1].receive_message(QueueUrl="letters", MaxNumberOfMessages=10, WaitTimeSeconds=2)

    while messages := receive().get("Messages"):
        letters.update(message["Body"] for message in messages)
        for message in messages:
            clients[2].delete_message(QueueUrl="letters", ReceiptHandle=message["ReceiptHandle"])
    assert letters == Counter(bodies)


def waiting(client: Any, queue: str) -> int:
    """Return how many messages of a queue wait."""
    wanted = "ApproximateNumberOfMessages"
    found = client.get_queue_attributes(QueueUrl=queue, AttributeNames=[wanted])["Attributes"]
    return int(found[wanted])


@pytest.mark.parametrize("scope", ["queue", "messageGroup"])
def test_groups_of_a_fifo_queue_are_in_order_whichever_hosts_are_asked(clients: list[Any], scope: str) -> None:
    first, second, _ = clients
    name = f"{scope}.fifo"
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "DeduplicationScope": scope}
    url = first.create_queue(QueueName=name, Attributes=fifo)["QueueUrl"]
    until(lambda: all(name in str(client.list_queues().get("QueueUrls")) for client in clients), "all know the queue")
    groups = [f"group-{number}" for number in range(12)]
    sent = {}
    for step in range(3):
        for place, group in enumerate(groups):
            message = {"MessageBody": f"{group} {step}", "MessageGroupId": group}
            sender, repeater = clients[(place + step) % 3], clients[(place + step + 1) % 3]
            sent[message["MessageBody"]] = sender.send_message(QueueUrl=name, **message)["MessageId"]
            again = repeater.send_message(QueueUrl=name, **message)["MessageId"]
            assert again == sent[message["MessageBody"]], "a duplicate"
    shards = {text[9:13] for text in sent.values()}
    assert (len(shards) == 1) if scope == "queue" else (len(shards) > SHARDS // 3)

    got: list[str] = []
    for turn in range(100 * len(sent)):
        client = clients[turn % 3]
        found = client.receive_message(QueueUrl=name, MaxNumberOfMessages=10, VisibilityTimeout=600, WaitTimeSeconds=1)
        messages = found.get("Messages", [])
        places = [message["Body"].split() for message in messages]
        assert places == sorted(places, key=lambda place: (names_of(places).index(place[0]), place[1])), "in order"
        for message in messages:
            got.append(message["Body"])
            second.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        if len(got) >= len(sent):
            break
    assert sorted(got) == sorted(sent), "each once"
    for group in groups:
        assert [body for body in got if body.startswith(f"{group} ")] == [f"{group} {step}" for step in range(3)]
    assert "Messages" not in second.receive_message(QueueUrl=name, WaitTimeSeconds=1)


def names_of(places: list[list[str]]) -> list[str]:
    """Return the groups of messages, each once, in the order in which they came."""
    return [*dict.fromkeys(group for group, _ in places)]
