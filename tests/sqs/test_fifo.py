"""FIFO queues through boto3: order, duplicates, receives that are repeated, and dead letters that come back."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.support.poll import until

pytestmark = [pytest.mark.process]

FIFO: Final = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


def create(sqs: Any, name: str, **attributes: str) -> str:
    return str(sqs.create_queue(QueueName=name, Attributes={**FIFO, **attributes})["QueueUrl"])


def receive(sqs: Any, queue: str, **more: Any) -> list[Any]:
    """Return the messages of a receive that takes those of all groups."""
    wanted = {"MaxNumberOfMessages": 10, **more}
    found = sqs.receive_message(QueueUrl=queue, MessageSystemAttributeNames=["All"], **wanted)
    return list(found.get("Messages", []))


def bodies(messages: list[Any]) -> list[str]:
    return sorted(message["Body"] for message in messages)


def delete(sqs: Any, queue: str, messages: list[Any]) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_groups_of_a_batch_are_delivered_in_order_and_locked_until_all_received_messages_are_deleted(sqs: Any) -> None:
    queue = create(sqs, "batch.fifo")
    names = [(group, step) for step in ("1", "2", "3") for group in ("ada", "bob")]
    entries = [{"Id": f"{g}-{s}", "MessageBody": f"{g} {s}", "MessageGroupId": g} for g, s in names]
    reply = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    numbers = [sent["SequenceNumber"] for sent in reply["Successful"]]
    assert numbers == sorted(numbers)
    received = [message["Body"] for message in receive(sqs, queue, WaitTimeSeconds=10, MaxNumberOfMessages=5)]
    assert received == ["ada 1", "ada 2", "ada 3", "bob 1", "bob 2"]
    assert receive(sqs, queue) == [], "both groups are locked"


def test_messages_behind_one_that_becomes_visible_are_received_again_behind_it(sqs: Any) -> None:
    queue = create(sqs, "failed.fifo")
    for step in "12345":
        sqs.send_message(QueueUrl=queue, MessageBody=step, MessageGroupId="ada")
    messages = receive(sqs, queue, WaitTimeSeconds=10, MaxNumberOfMessages=4)
    assert [message["Body"] for message in messages] == ["1", "2", "3", "4"]
    delete(sqs, queue, messages[:1])
    assert receive(sqs, queue) == [], "the group is locked"
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=messages[1]["ReceiptHandle"], VisibilityTimeout=0)
    delete(sqs, queue, messages[2:])  # they were superseded, so nothing is deleted
    again = receive(sqs, queue, WaitTimeSeconds=10)
    assert [message["Body"] for message in again] == ["2", "3", "4", "5"]
    counts = [message["Attributes"]["ApproximateReceiveCount"] for message in again]
    assert counts == ["2", "1", "1", "1"]
    delete(sqs, queue, again)
    assert receive(sqs, queue) == []


def test_a_duplicate_gets_the_first_message_id(sqs: Any) -> None:
    queue = create(sqs, "duplicates.fifo")
    first = sqs.send_message(QueueUrl=queue, MessageBody="a", MessageGroupId="ada", MessageDeduplicationId="one")
    again = sqs.send_message(QueueUrl=queue, MessageBody="b", MessageGroupId="bob", MessageDeduplicationId="one")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert bodies(receive(sqs, queue, WaitTimeSeconds=10)) == ["a"]


def test_a_receive_that_is_repeated_gets_the_same_messages_until_one_is_deleted(sqs: Any) -> None:
    queue = create(sqs, "attempts.fifo")
    for group in ("ada", "bob"):
        for step in ("1", "2"):
            sqs.send_message(QueueUrl=queue, MessageBody=f"{group} {step}", MessageGroupId=group)
    first = receive(sqs, queue, ReceiveRequestAttemptId="attempt", WaitTimeSeconds=10)
    assert bodies(first) == ["ada 1", "ada 2", "bob 1", "bob 2"]
    assert receive(sqs, queue, ReceiveRequestAttemptId="attempt") == first
    assert receive(sqs, queue, ReceiveRequestAttemptId="another") == [], "the groups are locked"
    sqs.send_message(QueueUrl=queue, MessageBody="later", MessageGroupId=first[0]["Body"][:3])
    delete(sqs, queue, first[:1])
    assert receive(sqs, queue, ReceiveRequestAttemptId="attempt") == [], "the groups are still locked"
    delete(sqs, queue, first[1:2])
    (other,) = receive(sqs, queue, ReceiveRequestAttemptId="attempt", WaitTimeSeconds=10)
    assert other["Body"] == "later", "the other group is still locked"


def test_a_dead_letter_unlocks_its_group_and_moves_back_into_it(sqs: Any) -> None:
    dead = create(sqs, "dead.fifo")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    queue = create(sqs, "poisoned.fifo", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    for body in ("poison", "next"):
        sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId="ada")
    poison = receive(sqs, queue, VisibilityTimeout=0, WaitTimeSeconds=10, MaxNumberOfMessages=1)
    assert bodies(poison) == ["poison"]
    (after,) = receive(sqs, queue, WaitTimeSeconds=10)
    assert after["Body"] == "next"
    sqs.start_message_move_task(SourceArn=arn)

    def is_moved() -> bool:
        return bool(sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]["Status"] == "COMPLETED")

    until(is_moved, "the dead letter is moved back")
    assert receive(sqs, queue) == [], "the group is locked"
    delete(sqs, queue, [after])
    (again,) = receive(sqs, queue, WaitTimeSeconds=10)
    assert (again["Body"], again["Attributes"]["MessageGroupId"]) == ("poison", "ada")
