"""Sends, receives and deletes with boto3: boto3_cycle.py PORT COUNT."""

import sys

import boto3

port, count = sys.argv[1], int(sys.argv[2])
sqs = boto3.client(
    "sqs",
    endpoint_url=f"http://127.0.0.1:{port}",
    region_name="us-east-1",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
)
queue = sqs.create_queue(QueueName="boto3-cycle", Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
sent = {sqs.send_message(QueueUrl=queue, MessageBody=f"message {place}")["MessageId"] for place in range(count)}
got = set()
while len(got) < count:
    for message in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]:
        got.add(message["MessageId"])
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
assert got == sent
try:
    sqs.get_queue_url(QueueName="absent")
except sqs.exceptions.QueueDoesNotExist as error:
    assert error.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
else:
    raise AssertionError("the queue does not exist")
print(f"{len(got)} messages")
