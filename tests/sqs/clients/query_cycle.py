"""Uses every kind of parameter and reply with a boto3 that speaks the Query protocol: query_cycle.py PORT COUNT."""

import json
import sys

import boto3
from botocore.exceptions import ClientError

port, count = sys.argv[1], int(sys.argv[2])
sqs = boto3.client(
    "sqs",
    endpoint_url=f"http://127.0.0.1:{port}",
    region_name="us-east-1",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
)
assert sqs.meta.service_model.metadata["protocol"] == "query"


def refused(call, **parameters) -> str:
    try:
        call(**parameters)
    except ClientError as error:
        return error.response["Error"]["Code"]
    raise AssertionError(f"{parameters} is not refused")


dead = sqs.create_queue(QueueName="query-dead")["QueueUrl"]
arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
queue = sqs.create_queue(QueueName="query", Attributes={"VisibilityTimeout": "60"}, tags={"team": "é & <x>"})[
    "QueueUrl"
]
policy = {"deadLetterTargetArn": arn, "maxReceiveCount": 9}
sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": json.dumps(policy), "DelaySeconds": "0"})
found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
assert (found["VisibilityTimeout"], json.loads(found["RedrivePolicy"])) == ("60", policy)
sqs.tag_queue(QueueUrl=queue, Tags={"a": "b"})
sqs.untag_queue(QueueUrl=queue, TagKeys=["a"])
assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "é & <x>"}
assert queue in sqs.list_queues(QueueNamePrefix="query")["QueueUrls"]
assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]
sqs.add_permission(QueueUrl=queue, Label="label", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
sqs.remove_permission(QueueUrl=queue, Label="label")

attributes = {
    "text": {"DataType": "String.custom", "StringValue": 'grüße "<&>"\t\r\n'},
    "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
}
body = 'grüße 😀 "<&>"\r\n'
sent = sqs.send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=attributes)
(message,) = sqs.receive_message(
    QueueUrl=queue, AttributeNames=["All"], MessageAttributeNames=["All"], WaitTimeSeconds=5
)["Messages"]
assert (message["Body"], message["MessageAttributes"]) == (body, attributes)
assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
assert message["Attributes"]["ApproximateReceiveCount"] == "1"
sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=120)
sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
assert "Messages" not in sqs.receive_message(QueueUrl=queue)

entries = [{"Id": str(place), "MessageBody": f"message {place}", "DelaySeconds": 0} for place in range(10)]
assert len(sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]) == 10
(late,) = sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "x", "MessageBody": "x", "DelaySeconds": 901}])[
    "Failed"
]
assert (late["Id"], late["Code"], late["SenderFault"]) == ("x", "InvalidParameterValue", True)
got = []
while len(got) < 10:
    messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]
    handles = [{"Id": str(place), "ReceiptHandle": found["ReceiptHandle"]} for place, found in enumerate(messages)]
    visible = [{**handle, "VisibilityTimeout": 90} for handle in handles]
    assert not sqs.change_message_visibility_batch(QueueUrl=queue, Entries=visible).get("Failed")
    assert not sqs.delete_message_batch(QueueUrl=queue, Entries=handles).get("Failed")
    got += [found["Body"] for found in messages]
assert sorted(got) == [f"message {place}" for place in range(10)]

assert refused(sqs.get_queue_url, QueueName="absent") == "AWS.SimpleQueueService.NonExistentQueue"
assert refused(sqs.delete_message, QueueUrl=queue, ReceiptHandle="x") == "ReceiptHandleIsInvalid"
assert refused(sqs.get_queue_attributes, QueueUrl=queue, AttributeNames=["Nothing"]) == "InvalidAttributeName"
assert refused(sqs.create_queue, QueueName="query", Attributes={"VisibilityTimeout": "61"}) == "QueueAlreadyExists"
task = sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
assert task
assert sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]["SourceArn"] == arn
sqs.purge_queue(QueueUrl=queue)
sqs.delete_queue(QueueUrl=queue)
print(f"{count} messages")
