"""Sends, receives and deletes with aiobotocore: aiobotocore_cycle.py PORT COUNT."""

import asyncio
import sys

from aiobotocore.session import get_session


async def main(port: str, count: int) -> None:
    client = get_session().create_client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    async with client as sqs:
        queue = (await sqs.create_queue(QueueName="aio-cycle"))["QueueUrl"]
        bodies = [f"message {place}" for place in range(count)]
        replies = await asyncio.gather(*(sqs.send_message(QueueUrl=queue, MessageBody=body) for body in bodies))
        got = set()
        while len(got) < count:
            found = await sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)
            entries = [
                {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]}
                for place, message in enumerate(found["Messages"])
            ]
            assert not (await sqs.delete_message_batch(QueueUrl=queue, Entries=entries)).get("Failed")
            got |= {message["MessageId"] for message in found["Messages"]}
        assert got == {reply["MessageId"] for reply in replies}
        print(f"{len(got)} messages")


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
