"""Message move tasks: each is a bulk job with the right filter, and is shown as SQS shows it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from foqs.core.items.item import State
from foqs.queue.bulk_jobs.bulk_job import BulkJobCounts, BulkJobOwner, BulkJobState
from foqs.sqs.errors import SqsError
from foqs_contract.bulk_actions import MOVE
from tests.support.builders import engine_settings
from tests.support.engines import World, run_in_world
from tests.support.sqs_world import SqsWorld, arn, policy

Story = Callable[[SqsWorld], Coroutine[Any, Any, None]]
DEAD = arn("dead")


def run_story(story: Story) -> None:
    """Run a story with the queues `mail` and `other`, whose dead letter queue is `dead`, and `plain`."""

    async def run(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        for name in ("dead", "plain"):
            await sqs.create(name)
        await sqs.create("mail", RedrivePolicy=policy("dead", 1))
        await story(sqs)

    run_in_world(run)


async def refusal(sqs: SqsWorld, action: str, **parameters: Any) -> tuple[str, str]:
    with pytest.raises(SqsError) as refused:
        await sqs.call(action, **parameters)
    return refused.value.shape, refused.value.message


def test_a_task_is_an_exclusive_job_that_moves_what_is_not_in_flight() -> None:
    async def story(sqs: SqsWorld) -> None:
        await sqs.send("dead", "a", "b", "c")
        await sqs.receive("dead", MaxNumberOfMessages=1)
        handle = (await sqs.call("StartMessageMoveTask", SourceArn=DEAD, MaxNumberOfMessagesPerSecond=7))["TaskHandle"]
        (job,) = sqs.jobs.jobs.by_id.values()
        assert json.loads(base64.b64decode(handle)) == {"taskId": job.id, "sourceArn": DEAD}
        spec = job.spec
        assert (spec.item_filter.topic, spec.item_filter.states) == ("dead", (State.READY, State.DEFERRED))
        assert (spec.change.action, spec.change.move_to) == (MOVE, "mail")
        assert (spec.rate_per_s, spec.expected, spec.is_exclusive) == (7, 2, True)
        refused = await refusal(sqs, "StartMessageMoveTask", SourceArn=DEAD)
        assert refused[0] == "InvalidParameterValueException"
        assert "already a task running" in refused[1]

    run_story(story)


def test_a_task_may_have_another_destination() -> None:
    async def story(sqs: SqsWorld) -> None:
        await sqs.call("StartMessageMoveTask", SourceArn=DEAD, DestinationArn=arn("plain"))
        (job,) = sqs.jobs.jobs.by_id.values()
        assert job.spec.change.move_to == "plain"

    run_story(story)


def test_without_a_destination_there_must_be_one_source() -> None:
    async def story(sqs: SqsWorld) -> None:
        await sqs.create("other", RedrivePolicy=policy("dead", 1))
        assert (await refusal(sqs, "StartMessageMoveTask", SourceArn=DEAD))[0] == "UnsupportedOperation"
        await sqs.call("StartMessageMoveTask", SourceArn=DEAD, DestinationArn=arn("other"))

    run_story(story)


@pytest.mark.parametrize(
    ("parameters", "shape", "says"),
    [
        ({}, "MissingRequiredParameterException", "SourceArn"),
        ({"SourceArn": "dead"}, "InvalidParameterValueException", "not the ARN"),
        ({"SourceArn": arn("absent")}, "ResourceNotFoundException", "SourceArn parameter doesn't exist"),
        ({"SourceArn": arn("plain")}, "InvalidParameterValueException", "configured as a Dead Letter Queue"),
        (
            {"SourceArn": DEAD, "DestinationArn": arn("absent")},
            "ResourceNotFoundException",
            "DestinationArn parameter doesn't exist",
        ),
        ({"SourceArn": DEAD, "DestinationArn": DEAD}, "InvalidParameterValueException", "must be different"),
        ({"SourceArn": DEAD, "MaxNumberOfMessagesPerSecond": 0}, "InvalidParameterValueException", "between 1 and 500"),
        ({"SourceArn": DEAD, "MaxNumberOfMessagesPerSecond": 501}, "InvalidParameterValueException", "between 1 and"),
    ],
)
def test_a_wrong_task_is_refused_and_starts_no_job(parameters: Any, shape: str, says: str) -> None:
    async def story(sqs: SqsWorld) -> None:
        refused = await refusal(sqs, "StartMessageMoveTask", **parameters)
        assert refused[0] == shape
        assert says in refused[1]
        assert not sqs.jobs.jobs.by_id

    run_story(story)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "RUNNING"),
        ({"state": BulkJobState.INTERRUPTED}, "RUNNING"),
        ({"state": BulkJobState.DONE}, "COMPLETED"),
        ({"state": BulkJobState.CANCELLED, "owner": BulkJobOwner("host", "nonce")}, "CANCELLING"),
        ({"state": BulkJobState.CANCELLED}, "CANCELLED"),
        ({"state": BulkJobState.FAILED, "problem": "why"}, "FAILED"),
    ],
)
def test_a_task_is_listed_with_its_state(fields: Any, status: str) -> None:
    async def story(sqs: SqsWorld) -> None:
        handle = (await sqs.call("StartMessageMoveTask", SourceArn=DEAD))["TaskHandle"]
        (job_id,) = sqs.jobs.jobs.by_id
        sqs.jobs.set(job_id, counts=BulkJobCounts(5, 4, 1), **fields)
        (task,) = (await sqs.call("ListMessageMoveTasks", SourceArn=DEAD))["Results"]
        assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == (status, 4)
        assert (task["SourceArn"], task["DestinationArn"]) == (DEAD, arn("mail"))
        assert task.get("TaskHandle") == (handle if status == "RUNNING" else None)
        assert task.get("FailureReason") == ("why" if status == "FAILED" else None)
        assert "MaxNumberOfMessagesPerSecond" not in task

    run_story(story)


def test_the_newest_tasks_of_the_source_are_listed() -> None:
    async def story(sqs: SqsWorld) -> None:
        for _ in range(3):
            await sqs.call("StartMessageMoveTask", SourceArn=DEAD, DestinationArn=arn("plain"))
            newest = list(sqs.jobs.jobs.by_id)[-1]
            sqs.jobs.set(newest, state=BulkJobState.DONE)
        started = [
            task["StartedTimestamp"]
            for task in (await sqs.call("ListMessageMoveTasks", SourceArn=DEAD, MaxResults=2))["Results"]
        ]
        assert started == sorted(started, reverse=True)
        assert len(started) == 2
        assert len((await sqs.call("ListMessageMoveTasks", SourceArn=DEAD))["Results"]) == 1
        assert (await sqs.call("ListMessageMoveTasks", SourceArn=arn("plain")))["Results"] == []
        assert (await refusal(sqs, "ListMessageMoveTasks", SourceArn=arn("absent")))[0] == "ResourceNotFoundException"
        wrong = await refusal(sqs, "ListMessageMoveTasks", SourceArn=DEAD, MaxResults=11)
        assert wrong[0] == "InvalidParameterValueException"

    run_story(story)


def test_a_running_task_is_cancelled_once() -> None:
    async def story(sqs: SqsWorld) -> None:
        handle = (await sqs.call("StartMessageMoveTask", SourceArn=DEAD))["TaskHandle"]
        (job_id,) = sqs.jobs.jobs.by_id
        sqs.jobs.set(job_id, counts=BulkJobCounts(9, 9))
        cancelled = await sqs.call("CancelMessageMoveTask", TaskHandle=handle)
        assert cancelled == {"ApproximateNumberOfMessagesMoved": 9}
        sqs.jobs.set(job_id, state=BulkJobState.DONE)
        refused = await refusal(sqs, "CancelMessageMoveTask", TaskHandle=handle)
        assert refused == ("InvalidParameterValueException", "Only active tasks can be cancelled.")

    run_story(story)


def handle(task: Any, source: Any) -> str:
    return base64.b64encode(json.dumps({"taskId": task, "sourceArn": source}).encode()).decode()


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("foobared", "InvalidParameterValueException"),
        ("é", "InvalidParameterValueException"),
        ("W10=", "InvalidParameterValueException"),
        ("A" * 100_000, "InvalidParameterValueException"),
        (handle(1, DEAD), "InvalidParameterValueException"),
        (handle("0", 1), "InvalidParameterValueException"),
        (handle("0", arn("absent")), "ResourceNotFoundException"),
        (handle("0", DEAD), "ResourceNotFoundException"),
    ],
)
def test_a_handle_of_no_task_is_refused(text: str, shape: str) -> None:
    async def story(sqs: SqsWorld) -> None:
        assert (await refusal(sqs, "CancelMessageMoveTask", TaskHandle=text))[0] == shape

    run_story(story)


def test_the_tasks_into_a_queue_end_when_it_is_deleted() -> None:
    async def story(sqs: SqsWorld) -> None:
        await sqs.call("StartMessageMoveTask", SourceArn=DEAD, DestinationArn=arn("plain"))
        await sqs.call("DeleteQueue", QueueUrl="plain")
        (job,) = sqs.jobs.jobs.by_id.values()
        assert job.state is BulkJobState.CANCELLED

    run_story(story)


def test_a_repeated_start_of_one_call_is_the_same_task() -> None:
    async def story(sqs: SqsWorld) -> None:
        sqs.invocation_id = "0123456789abcdef"
        handles = {(await sqs.call("StartMessageMoveTask", SourceArn=DEAD))["TaskHandle"] for _ in range(2)}
        assert len(handles) == 1
        with pytest.raises(SqsError, match="already a task running"):
            await sqs.call("StartMessageMoveTask", SourceArn=DEAD, DestinationArn=arn("plain"))

    run_story(story)
