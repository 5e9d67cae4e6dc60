"""Signs GETs of the Query protocol with boto 2, whose parameters have no numbers: boto2_cycle.py PORT COUNT KEY SECRET."""

import sys
import time

from boto.exception import SQSError
from boto.regioninfo import RegionInfo
from boto.sqs.connection import SQSConnection
from boto.sqs.message import RawMessage

port, count, key, secret = sys.argv[1:]
sqs = SQSConnection(
    key, secret, is_secure=False, port=int(port), region=RegionInfo(name="eu-west-1", endpoint="127.0.0.1")
)
queue = sqs.create_queue("boto2", visibility_timeout=60)
queue.set_message_class(RawMessage)
assert queue.set_attribute("DelaySeconds", 0)
assert queue.set_timeout(90)
assert queue.get_attributes("VisibilityTimeout") == {"VisibilityTimeout": "90"}
assert [found.name for found in sqs.get_all_queues("boto")] == ["boto2"]


def receive(**more):
    return queue.get_messages(10, wait_time_seconds=5, attributes="All", message_attributes=["*"], **more)


sent = RawMessage(body='grüße + "<&>"', queue=queue)
sent.message_attributes = {"kind": {"data_type": "String", "string_value": "a & b"}}
queue.write(sent)
(message,) = receive(visibility_timeout=1)
assert (message.get_body(), message.id) == ('grüße + "<&>"', sent.id)
assert message.message_attributes["kind"]["string_value"] == "a & b"
while not queue.count():  # until its visibility timeout has ended
    time.sleep(0.05)
message.change_visibility(60)
assert not queue.get_messages(10)
assert message.attributes["ApproximateReceiveCount"] == "1"
message.change_visibility(0)
message.change_visibility(0)
assert queue.delete_message(message)
assert not queue.get_messages(10)

assert len(queue.write_batch([(str(place), f"message {place}", 0) for place in range(10)]).results) == 10
got = []
while len(got) < 10:
    messages = receive()
    assert not queue.change_message_visibility_batch([(found, 60) for found in messages]).errors
    assert not queue.delete_message_batch(messages).errors
    got += [found.get_body() for found in messages]
assert sorted(got) == [f"message {place}" for place in range(10)]
try:
    sqs.delete_message_from_handle(queue, "garbage")
except SQSError as error:
    assert error.error_code == "ReceiptHandleIsInvalid"
    assert '"garbage"' in error.message
else:
    raise AssertionError("garbage is no receipt")
assert sqs.delete_queue(queue)
print(count + " messages")
