"""Queues through boto3: attributes, tags, pages, purge; and every operation of SQS' model is known."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import botocore.session
import pytest

from tests.support.sqs_host import ACCOUNT, OTHER_ACCOUNT, SqsHost, sqs_client

pytestmark = [pytest.mark.process]

MEMBERS: Final[dict[str, Any]] = {
    "AWSAccountIds": ["111111111111"],
    "Actions": ["SendMessage"],
    "Attributes": {"DelaySeconds": "1"},
    "Entries": [{"Id": "a", "MessageBody": "x", "ReceiptHandle": "x", "VisibilityTimeout": 1}],
    "Label": "label",
    "MessageBody": "x",
    "ReceiptHandle": "x",
    "SourceArn": "arn:aws:sqs:eu-west-1:000000000000:mail",
    "TagKeys": ["a"],
    "Tags": {"a": "b"},
    "TaskHandle": "x",
    "VisibilityTimeout": 1,
}


def test_every_operation_of_the_model_is_known(sqs: Any, queue: str) -> None:
    model = botocore.session.get_session().get_service_model("sqs")
    outcomes = {}
    for name in model.operation_names:
        shape = model.operation_model(name).input_shape
        members = {"QueueUrl": queue, "QueueName": queue.rpartition("/")[2], **MEMBERS}
        wanted = {member: members[member] for member in shape.required_members}
        for member in wanted:
            if member == "Entries":
                entry = shape.members["Entries"].member
                wanted["Entries"] = [{key: MEMBERS["Entries"][0][key] for key in entry.required_members}]
        if name == "DeleteQueue":
            wanted["QueueUrl"] = sqs.create_queue(QueueName="to-delete")["QueueUrl"]
        try:
            sqs._make_api_call(name, wanted)
            outcomes[name] = "OK"
        except sqs.exceptions.ClientError as error:
            outcomes[name] = error.response["Error"]["Code"]
    assert len(outcomes) == 23
    refused = {name: code for name, code in outcomes.items() if code != "OK"}
    absent = dict.fromkeys(("ListMessageMoveTasks", "StartMessageMoveTask"), "ResourceNotFoundException")
    wrong = {"CancelMessageMoveTask": "InvalidParameterValue"}
    invalid = dict.fromkeys(("ChangeMessageVisibility", "DeleteMessage"), "ReceiptHandleIsInvalid")
    label = {"RemovePermission": refused.get("RemovePermission")}
    assert {**absent, **wrong, **invalid, **{k: v for k, v in label.items() if v}} == refused


def test_attributes_and_tags_outlive_the_host(tmp_path: Path) -> None:
    with SqsHost(tmp_path) as host:
        host.start()
        sqs = sqs_client(host.endpoint)
        dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
        queue = sqs.create_queue(QueueName="mail", Attributes={"RedrivePolicy": policy}, tags={"team": "é"})["QueueUrl"]
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "7"})
        sqs.send_message(QueueUrl=dead, MessageBody="kept")
        assert host.stop() == 0
        host.start()
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        assert (found["DelaySeconds"], json.loads(found["RedrivePolicy"])["maxReceiveCount"]) == ("7", 3)
        assert found["LastModifiedTimestamp"] >= found["CreatedTimestamp"]
        assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "é"}
        assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]
        (message,) = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=10)["Messages"]
        assert message["Body"] == "kept"


def test_a_queue_url_is_made_from_the_address_that_the_client_uses(host: SqsHost, sqs: Any, queue: str) -> None:
    assert queue.startswith(f"{host.endpoint}/{ACCOUNT}/queue-")
    other = sqs_client(f"http://localhost:{host.sqs_port}")
    assert other.get_queue_url(QueueName=queue.rpartition("/")[2])["QueueUrl"].startswith(
        f"http://localhost:{host.sqs_port}/"
    )


def test_the_path_of_an_endpoint_chooses_an_account_of_the_same_namespace(host: SqsHost, sqs: Any, queue: str) -> None:
    other = sqs_client(f"{host.endpoint}/{OTHER_ACCOUNT}/")
    url = other.get_queue_url(QueueName=queue.rpartition("/")[2])["QueueUrl"]
    assert url.startswith(f"{host.endpoint}/{OTHER_ACCOUNT}/")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    assert other.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName="mail", QueueOwnerAWSAccountId="999999999999")


def test_the_sources_of_a_dead_letter_queue_have_urls_of_its_account(host: SqsHost, sqs: Any) -> None:
    other = sqs_client(f"{host.endpoint}/{OTHER_ACCOUNT}/")
    dead = other.create_queue(QueueName="dead-elsewhere")["QueueUrl"]
    arn = other.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    source = other.create_queue(QueueName="source-elsewhere", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    assert source.startswith(f"{host.endpoint}/{OTHER_ACCOUNT}/")
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [source]


def test_a_purge_empties_a_queue_and_a_deleted_queue_is_empty_when_it_is_created_again(sqs: Any) -> None:
    queue = sqs.create_queue(QueueName="purged")["QueueUrl"]
    for _ in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.purge_queue(QueueUrl=queue)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.delete_queue(QueueUrl=queue)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.send_message(QueueUrl=queue, MessageBody="x")
    assert sqs.create_queue(QueueName="purged")["QueueUrl"] == queue
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_move_tasks_of_an_account_that_does_not_exist_have_the_error_of_aws(sqs: Any) -> None:
    arn = "arn:aws:sqs:eu-west-1:999999999999:mail"
    handle = b64encode(json.dumps({"taskId": "x", "sourceArn": arn}).encode()).decode()
    for call, arguments in (
        (sqs.start_message_move_task, {"SourceArn": arn}),
        (sqs.list_message_move_tasks, {"SourceArn": arn}),
        (sqs.cancel_message_move_task, {"TaskHandle": handle}),
    ):
        with pytest.raises(sqs.exceptions.ResourceNotFoundException, match="for the SourceArn parameter") as refused:
            call(**arguments)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_a_queue_changes_its_kind_of_encryption(sqs: Any, queue: str) -> None:
    def encryption() -> tuple[str | None, str]:
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return found.get("KmsMasterKeyId"), found["SqsManagedSseEnabled"]

    assert encryption() == (None, "true")
    with pytest.raises(sqs.exceptions.InvalidAttributeName, match="one type of server-side encryption"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"KmsMasterKeyId": "key", "SqsManagedSseEnabled": "true"})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"KmsMasterKeyId": "key"})
    assert encryption() == ("key", "false")
    assert sqs.create_queue(QueueName=queue.rpartition("/")[2], Attributes={"KmsMasterKeyId": "key"})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"SqsManagedSseEnabled": "true"})
    assert encryption() == (None, "true")


def test_a_queue_is_not_its_own_dead_letter_queue(sqs: Any, queue: str) -> None:
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    with pytest.raises(sqs.exceptions.ClientError, match="cannot be its own dead letter target"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})


def test_a_fifo_queue_is_created_and_used_by_its_name(sqs: Any) -> None:
    name = "orders-by-name.fifo"
    queue = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == queue
    sent = [
        sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=body)
        for body in ("one", "two")
    ]
    assert sent[0]["SequenceNumber"] < sent[1]["SequenceNumber"]
    (message,) = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, AttributeNames=["All"])["Messages"]
    assert (message["Body"], message["Attributes"]["MessageGroupId"]) == ("one", "g")
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    (message,) = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "two"
    sqs.delete_queue(QueueUrl=queue)


def test_a_standard_queue_has_no_attribute_of_a_fifo_queue(sqs: Any) -> None:
    with pytest.raises(sqs.exceptions.InvalidAttributeName, match="Unknown Attribute FifoQueue"):
        sqs.create_queue(QueueName="a", Attributes={"FifoQueue": "false"})


def test_queues_are_bounded(tmp_path: Path) -> None:
    with SqsHost(tmp_path, {"sqs.queues_max": 2}) as host:
        host.start()
        sqs = sqs_client(host.endpoint, retries={"total_max_attempts": 1})
        for name in ("a", "b", "b"):
            sqs.create_queue(QueueName=name)
        with pytest.raises(sqs.exceptions.OverLimit, match="has 2 queues already"):
            sqs.create_queue(QueueName="c")
