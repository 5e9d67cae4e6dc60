"""The actions of SQS on an engine in virtual time, without HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from foqs.access.call_permissions import Principal
from foqs.core.limits.waiting_calls import WaitingCalls
from foqs.options.sqs_options import ACCOUNT_DEFAULT, SqsOptions
from foqs.queue.engine import Engine
from foqs.routing.port import HostIdentity, StandaloneCluster
from foqs.rpc.host_service import host_service
from foqs.rpc.in_host_calls import InHostCalls
from foqs.sqs.action_request import ActionRequest
from foqs.sqs.action_table import actions
from foqs.sqs.dead_letter_sweep import DeadLetterSweep
from foqs.sqs.identifiers import Account
from foqs.sqs.message_actions import MessageActions
from foqs.sqs.move_tasks import MoveTasks
from foqs.sqs.parameters import Parameters
from foqs.sqs.queue_actions import QueueActions
from foqs.sqs.queue_directory import QueueDirectory
from foqs_contract.errors import PermissionDenied
from tests.support.engines import World
from tests.support.memory_jobs import MemoryJobs

REGION: Final = "eu-west-1"
OPTIONS: Final = SqsOptions()
_TIMEOUT_S: Final = 5.0
RECEIVES_WAITING_MAX: Final = 4


class SqsWorld:
    """One host's actions.

    Attributes:
        jobs: the bulk jobs; nobody works on them.
        invocation_id: of all actions.
        trace: of all actions.
        region: of all actions.
        principal: of all actions.
        requests: those of the actions so far.
        is_granted: whether the principal of receives that wait still has its grant.
        writes_replies: whether the reply of each action is written; else it is made, and the test gives its messages back.
        sweep: the sweep of its dead letters, which the test runs.
    """

    def __init__(self, world: World, engine: Engine, options: SqsOptions = OPTIONS) -> None:
        handlers = host_service(
            engine.queue, StandaloneCluster(HostIdentity("127.0.0.1", 1, 1), engine.queue.shard_statuses), world.rng
        )
        calls = InHostCalls(handlers, 1.0)
        directory = QueueDirectory(engine.admin, options, world.loop.time)

        def now_s() -> float:
            return world.clock.wall_ms() / 1_000

        self.jobs = MemoryJobs()
        self.invocation_id: str | None = None
        self.trace = b""
        self.region = REGION
        self.principal: Principal | None = None
        self.requests: list[ActionRequest] = []
        self.is_granted = True
        self.writes_replies = True
        self.on_catalog_changed = directory._on_catalog_changed
        tasks = MoveTasks(directory, self.jobs, calls, _TIMEOUT_S, world.loop.time)
        queues = QueueActions(directory, calls, tasks, _TIMEOUT_S, now_s, world.loop.time)
        waiting = WaitingCalls(RECEIVES_WAITING_MAX, 0)
        messages = MessageActions(directory, calls, _TIMEOUT_S, now_s, waiting, world.loop.time)
        self._actions = actions(queues, messages, tasks)
        self.sweep = DeadLetterSweep(engine.admin.document, engine.shards, engine.queue.bulk, _TIMEOUT_S)

    async def call(self, action: str, /, **parameters: Any) -> Mapping[str, Any]:
        """Run an action. Raises what it raises."""
        request = ActionRequest(
            Parameters(parameters),
            Account(ACCOUNT_DEFAULT, self.region),
            None,
            "http://sqs.example",
            principal=self.principal,
            invocation_id=self.invocation_id,
            trace=self.trace,
            check_grant=self._check_grant,
        )
        self.requests.append(request)
        reply = await self._actions[action].handle(request)
        if self.writes_replies:
            request.reply_is_written()
        return reply

    def _check_grant(self) -> None:
        if not self.is_granted:
            raise PermissionDenied("the grant was taken away")

    async def create(self, name: str, **attributes: str) -> str:
        """Create a queue; return its name, which is accepted as its URL."""
        await self.call("CreateQueue", QueueName=name, Attributes=attributes)
        return name

    async def send(self, queue: str, *bodies: str) -> list[str]:
        """Send messages; return their ids."""
        return [(await self.call("SendMessage", QueueUrl=queue, MessageBody=body))["MessageId"] for body in bodies]

    async def receive(self, queue: str, **parameters: Any) -> list[Any]:
        """Return the received messages, with all attributes."""
        wanted = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"], **parameters}
        return list((await self.call("ReceiveMessage", QueueUrl=queue, **wanted)).get("Messages", ()))

    async def receive_times(self, world: World, queue: str, times: int) -> None:
        """Receive each message of a queue so often, and let their visibility timeouts of a second end."""
        for _ in range(times):
            assert await self.receive(queue, VisibilityTimeout=1)
            while await self.receive(queue, VisibilityTimeout=1):
                pass
            await world.pass_s(1.5)


def arn(queue: str, region: str = REGION) -> str:
    return f"arn:aws:sqs:{region}:{ACCOUNT_DEFAULT}:{queue}"


def policy(target: str, receives_max: int, region: str = REGION) -> str:
    """Return a redrive policy."""
    return json.dumps({"deadLetterTargetArn": arn(target, region), "maxReceiveCount": receives_max})
