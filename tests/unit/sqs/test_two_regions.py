"""An account whose queues differ by region: a region with a key of its own in `sqs.accounts` has its own queues."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from foqs.options.sqs_options import ACCOUNT_DEFAULT, SqsOptions
from foqs.sqs.errors import SqsError
from tests.support.builders import engine_settings
from tests.support.engines import World, run_in_world
from tests.support.sqs_world import SqsWorld, arn, policy

EAST, ELSEWHERE, WEST = "us-east-1", "eu-west-1", "us-west-2"
"""`WEST` has queues of its own; the other two see the same ones."""
ACCOUNTS: Final = {ACCOUNT_DEFAULT: "default", f"{WEST}:{ACCOUNT_DEFAULT}": "other"}

Story = Callable[[World, SqsWorld], Coroutine[Any, Any, None]]


def run_story(story: Story) -> None:
    """Run a story with the queues `mail` and `dead` in both sets of queues."""

    async def run(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)), SqsOptions(accounts=ACCOUNTS))
        for sqs.region in (WEST, EAST):
            await sqs.create("mail")
            await sqs.create("dead")
        await story(world, sqs)

    run_in_world(run)


async def call_in(sqs: SqsWorld, region: str, action: str, **parameters: Any) -> Any:
    sqs.region = region
    return await sqs.call(action, **parameters)


async def refusal(sqs: SqsWorld, region: str, action: str, **parameters: Any) -> tuple[str, str]:
    with pytest.raises(SqsError) as refused:
        await call_in(sqs, region, action, **parameters)
    return refused.value.shape, refused.value.message


async def set_policy(sqs: SqsWorld, region: str, queue: str, name: str, text: str) -> None:
    await call_in(sqs, region, "SetQueueAttributes", QueueUrl=queue, Attributes={name: text})


def by_queue(*arns: str) -> str:
    return json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": arns})


def test_each_region_lists_its_own_queues_with_equal_urls() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        url = f"http://sqs.example/{ACCOUNT_DEFAULT}/letters"
        assert await call_in(sqs, WEST, "CreateQueue", QueueName="letters") == {"QueueUrl": url}
        for region, urls in ((WEST, [url]), (EAST, None), (ELSEWHERE, None)):
            assert (await call_in(sqs, region, "ListQueues", QueueNamePrefix="l")).get("QueueUrls") == urls
        for region in (EAST, ELSEWHERE):
            assert (await refusal(sqs, region, "GetQueueUrl", QueueName="letters"))[0] == "QueueDoesNotExist"
            assert (await refusal(sqs, region, "GetQueueAttributes", QueueUrl=url))[0] == "QueueDoesNotExist"
        owned = {"QueueName": "letters", "QueueOwnerAWSAccountId": ACCOUNT_DEFAULT}
        assert await call_in(sqs, WEST, "GetQueueUrl", **owned) == {"QueueUrl": url}
        owned["QueueOwnerAWSAccountId"] = f"{WEST}:{ACCOUNT_DEFAULT}"
        assert (await refusal(sqs, EAST, "GetQueueUrl", **owned))[0] == "QueueDoesNotExist"

    run_story(story)


def test_a_message_is_in_the_region_that_it_was_sent_in() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for sqs.region in (WEST, EAST):
            await sqs.send("mail", sqs.region)
        for sqs.region, found in ((ELSEWHERE, EAST), (WEST, WEST)):
            assert [message["Body"] for message in await sqs.receive("mail")] == [found]

    run_story(story)


def test_the_arn_of_a_queue_has_the_region_of_the_call() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for region in (WEST, EAST, ELSEWHERE):
            found = await call_in(sqs, region, "GetQueueAttributes", QueueUrl="mail", AttributeNames=["QueueArn"])
            assert found == {"Attributes": {"QueueArn": arn("mail", region)}}

    run_story(story)


def test_a_purge_of_one_region_does_not_delay_that_of_another_queue() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for region in (WEST, EAST):
            await call_in(sqs, region, "PurgeQueue", QueueUrl="mail")
        for region in (WEST, EAST, ELSEWHERE):
            assert (await refusal(sqs, region, "PurgeQueue", QueueUrl="mail"))[0] == "PurgeQueueInProgress"

    run_story(story)


def test_a_page_token_is_of_one_set_of_queues() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        token = (await call_in(sqs, EAST, "ListQueues", MaxResults=1))["NextToken"]
        assert (await call_in(sqs, ELSEWHERE, "ListQueues", NextToken=token))["QueueUrls"][0].endswith("/mail")
        refused = await refusal(sqs, WEST, "ListQueues", NextToken=token)
        assert refused == ("InvalidParameterValueException", "Invalid or expired next token.")

    run_story(story)


@pytest.mark.parametrize(("region", "other"), [(EAST, WEST), (ELSEWHERE, WEST), (WEST, EAST)])
def test_a_dead_letter_queue_of_other_queues_does_not_exist(region: str, other: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        text = policy("dead", 1, other)
        refused = await refusal(sqs, region, "SetQueueAttributes", QueueUrl="mail", Attributes={"RedrivePolicy": text})
        assert refused[0] == "InvalidParameterValueException"
        assert "for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist" in refused[1]
        new = await refusal(sqs, region, "CreateQueue", QueueName="new", Attributes={"RedrivePolicy": text})
        assert new == refused

    run_story(story)


@pytest.mark.parametrize(("region", "named", "shown"), [(WEST, WEST, WEST), (EAST, ELSEWHERE, EAST)])
def test_a_dead_letter_names_its_source_in_the_region_of_the_receive(region: str, named: str, shown: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await set_policy(sqs, region, "mail", "RedrivePolicy", policy("dead", 1, named))
        await sqs.send("mail", "poison")
        await sqs.receive_times(world, "mail", 1)
        assert await sqs.receive("mail") == []
        (letter,) = await sqs.receive("dead")
        assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn("mail", shown)
        found = await call_in(sqs, region, "ListDeadLetterSourceQueues", QueueUrl="dead")
        assert found == {"queueUrls": [f"http://sqs.example/{ACCOUNT_DEFAULT}/mail"]}
        sqs.region = EAST if region == WEST else WEST
        assert await sqs.receive("dead") == []

    run_story(story)


@pytest.mark.parametrize(
    ("region", "allowed", "is_allowed"),
    [(EAST, WEST, False), (WEST, EAST, False), (WEST, WEST, True), (EAST, EAST, True), (EAST, ELSEWHERE, True)],
)
def test_an_allow_policy_names_a_queue_of_one_region(region: str, allowed: str, is_allowed: bool) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await set_policy(sqs, region, "dead", "RedriveAllowPolicy", by_queue(arn("mail", allowed)))
        text = policy("dead", 1, region)
        if is_allowed:
            await set_policy(sqs, region, "mail", "RedrivePolicy", text)
            return
        refused = await refusal(sqs, region, "SetQueueAttributes", QueueUrl="mail", Attributes={"RedrivePolicy": text})
        assert "The RedriveAllowPolicy of dead does not allow this source queue." in refused[1]

    run_story(story)


@pytest.mark.parametrize(("region", "caller"), [(WEST, WEST), (WEST, EAST), (EAST, WEST), (EAST, ELSEWHERE)])
def test_a_move_task_is_in_the_region_of_its_arn(region: str, caller: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await set_policy(sqs, region, "mail", "RedrivePolicy", policy("dead", 1, region))
        source = arn("dead", region)
        handle = (await call_in(sqs, caller, "StartMessageMoveTask", SourceArn=source))["TaskHandle"]
        (job,) = sqs.jobs.jobs.by_id.values()
        assert job.spec.namespace == ("other" if region == WEST else "default")
        assert json.loads(base64.b64decode(handle))["sourceArn"] == source
        (task,) = (await call_in(sqs, caller, "ListMessageMoveTasks", SourceArn=source))["Results"]
        assert (task["SourceArn"], task["DestinationArn"]) == (source, arn("mail", region))
        assert task["TaskHandle"] == handle
        elsewhere = arn("dead", EAST if region == WEST else WEST)
        assert (await call_in(sqs, caller, "ListMessageMoveTasks", SourceArn=elsewhere))["Results"] == []
        await call_in(sqs, caller, "CancelMessageMoveTask", TaskHandle=handle)

    run_story(story)


def test_a_move_task_does_not_lead_to_queues_of_another_region() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await set_policy(sqs, EAST, "mail", "RedrivePolicy", policy("dead", 1, EAST))
        start = {"SourceArn": arn("dead", EAST), "DestinationArn": arn("mail", WEST)}
        refused = await refusal(sqs, EAST, "StartMessageMoveTask", **start)
        assert refused[0] == "InvalidParameterValueException"
        assert "must be of the account and region of the source queue" in refused[1]
        await call_in(sqs, EAST, "StartMessageMoveTask", **start | {"DestinationArn": arn("mail", ELSEWHERE)})

    run_story(story)
