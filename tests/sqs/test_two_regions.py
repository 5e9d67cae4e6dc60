"""One account in two regions through boto3: each region has its own queues, and grants of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from foqs.access.keyring import signing_secret
from foqs_client import Client
from tests.support.aio import run
from tests.support.certificates import secret_file
from tests.support.sqs_host import (
    ACCOUNT,
    OPTIONS_OF_TWO_REGIONS,
    OTHER_ACCOUNT,
    WEST,
    WEST_NAMESPACE,
    SqsHost,
    make_west,
    sqs_client,
)

pytestmark = [pytest.mark.process]

BOSS, EASTERN = "a-secret-of-the-boss", "a-secret-of-the-eastern"
EAST, ELSEWHERE = "us-east-1", "eu-west-1"
"""Both see the same queues."""
ONCE: Final[dict[str, Any]] = {"retries": {"total_max_attempts": 1}}


class TwoRegions(SqsHost):
    """A host with the administrator `boss`, and `eastern`, which may do everything with the queues of other regions than `WEST`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            name: str(secret_file(folder / name, token.encode()))
            for name, token in (("boss", BOSS), ("eastern", EASTERN))
        }
        options = {
            "auth.enabled": True,
            "auth.principals.boss.admin": True,
            **{f"auth.principals.{name}.token_file": file for name, file in files.items()},
        }
        super().__init__(folder / "host", {**OPTIONS_OF_TWO_REGIONS, **options})

    def client(self, region: str, name: str = "boss", token: str = BOSS, path: str = "") -> Any:
        endpoint = f"{self.endpoint}{path}"
        return sqs_client(endpoint, name, signing_secret(token.encode()), region=region, **ONCE)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRegions]:
    with TwoRegions(tmp_path_factory.mktemp("two")) as host:
        host.start()
        make_west(host, token=BOSS)

        async def grant() -> None:
            async with Client(host.address, token=BOSS) as client:
                await client.set_grant("eastern", ["enqueue", "consume", "admin"])

        run(grant())
        yield host


def arn_of(sqs: Any, queue: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def names(sqs: Any) -> set[str]:
    return {url.rpartition("/")[2] for url in sqs.list_queues().get("QueueUrls", ())}


def code(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return str(refused.value.response["Error"]["Code"])


def test_two_regions_see_their_own_queues(two: TwoRegions) -> None:
    east, west, elsewhere = (two.client(region) for region in (EAST, WEST, ELSEWHERE))
    url = east.create_queue(QueueName="mail", Attributes={"DelaySeconds": "0"})["QueueUrl"]
    assert west.create_queue(QueueName="mail", Attributes={"DelaySeconds": "1"})["QueueUrl"] == url
    west.create_queue(QueueName="west-only")
    assert "west-only" in names(west)
    assert names(east) == names(elsewhere)
    assert "west-only" not in names(east)
    for sqs, region in ((east, EAST), (west, WEST), (elsewhere, ELSEWHERE)):
        assert arn_of(sqs, url) == f"arn:aws:sqs:{region}:{ACCOUNT}:mail"
    for sqs, body in ((east, "east"), (west, "west")):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    for sqs, body in ((elsewhere, "east"), (west, "west")):
        (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
        assert message["Body"] == body
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert code(east.get_queue_url, QueueName="west-only") == "AWS.SimpleQueueService.NonExistentQueue"


def test_the_path_of_an_endpoint_chooses_an_account_of_the_region_of_the_call(two: TwoRegions) -> None:
    two.client(WEST, path=f"/{ACCOUNT}/").create_queue(QueueName="by-path")
    assert "by-path" in names(two.client(WEST))
    assert "by-path" not in names(two.client(EAST, path=f"/{ACCOUNT}/"))
    assert names(two.client(WEST, path=f"/{OTHER_ACCOUNT}/")) == names(two.client(EAST)), "it has no key for the region"


def test_a_dead_letter_queue_of_another_region_does_not_exist(two: TwoRegions) -> None:
    east, west = two.client(EAST), two.client(WEST)
    dead = {sqs: sqs.create_queue(QueueName="dead")["QueueUrl"] for sqs in (east, west)}
    for sqs, other in ((east, west), (west, east)):
        text = json.dumps({"deadLetterTargetArn": arn_of(other, dead[other]), "maxReceiveCount": 1})
        with pytest.raises(ClientError, match="Reason: Dead letter target does not exist"):
            sqs.create_queue(QueueName="source", Attributes={"RedrivePolicy": text})
        text = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead[sqs]), "maxReceiveCount": 1})
        source = sqs.create_queue(QueueName="source", Attributes={"RedrivePolicy": text})["QueueUrl"]
        assert sqs.list_dead_letter_source_queues(QueueUrl=dead[sqs])["queueUrls"] == [source]


def test_a_message_dies_and_is_moved_back_in_its_own_region(two: TwoRegions) -> None:
    east, west = two.client(EAST), two.client(WEST)
    for sqs in (east, west):
        dead = sqs.create_queue(QueueName="morgue")["QueueUrl"]
        text = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
        queue = sqs.create_queue(QueueName="ward", Attributes={"RedrivePolicy": text})["QueueUrl"]
    west.send_message(QueueUrl=queue, MessageBody="poison")
    assert west.receive_message(QueueUrl=queue, VisibilityTimeout=0, WaitTimeSeconds=10)["Messages"]
    assert "Messages" not in west.receive_message(QueueUrl=queue)
    received = {"QueueUrl": dead, "VisibilityTimeout": 0, "MessageSystemAttributeNames": ["All"]}
    (letter,) = west.receive_message(**received)["Messages"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(west, queue)
    assert "Messages" not in east.receive_message(**received)
    west.start_message_move_task(SourceArn=arn_of(west, dead))
    (message,) = west.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
    assert message["Body"] == "poison"
    (task,) = east.list_message_move_tasks(SourceArn=arn_of(west, dead))["Results"]
    assert (task["SourceArn"], task["DestinationArn"]) == (arn_of(west, dead), arn_of(west, queue))
    assert east.list_message_move_tasks(SourceArn=arn_of(east, dead))["Results"] == []


def test_a_grant_for_one_region_does_not_open_the_other(two: TwoRegions) -> None:
    east, west = (two.client(region, "eastern", EASTERN) for region in (EAST, WEST))
    url = two.client(WEST).create_queue(QueueName="guarded")["QueueUrl"]
    assert east.create_queue(QueueName="guarded")["QueueUrl"] == url
    east.send_message(QueueUrl=url, MessageBody="x")
    for call, arguments in (
        (west.create_queue, {"QueueName": "guarded"}),
        (west.list_queues, {}),
        (west.get_queue_url, {"QueueName": "guarded"}),
        (west.send_message, {"QueueUrl": url, "MessageBody": "x"}),
        (west.receive_message, {"QueueUrl": url}),
        (west.purge_queue, {"QueueUrl": url}),
    ):
        assert code(call, **arguments) == "AccessDenied"
    arns = {region: f"arn:aws:sqs:{region}:{ACCOUNT}:guarded" for region in (EAST, WEST)}
    for sqs in (east, west):
        assert code(sqs.list_message_move_tasks, SourceArn=arns[WEST]) == "AccessDenied"
        assert code(sqs.start_message_move_task, SourceArn=arns[WEST]) == "AccessDenied"
        assert sqs.list_message_move_tasks(SourceArn=arns[EAST])["Results"] == []

    async def noted() -> list[tuple[str | None, str]]:
        async with Client(two.address, token=BOSS) as client:
            return [(entry.namespace, entry.target) for entry in (await client.audit()).entries]

    entries = run(noted())
    assert (WEST_NAMESPACE, f"account={WEST}:{ACCOUNT} queue=guarded") in entries
    assert ("default", f"account={ACCOUNT} queue=guarded") in entries
