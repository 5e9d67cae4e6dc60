"""The actions of SQS: what serves each, and which permission it needs.

Always true: an action needs what the call of the contract needs that does the same, and
is noted in the audit if that call is. Knows nothing of requests' bytes and signatures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from foqs.sqs import move_tasks, queue_actions
from foqs.sqs.action_request import ActionRequest, ActionTarget
from foqs.sqs.errors import SqsError, queue_does_not_exist
from foqs.sqs.message_actions import MessageActions
from foqs.sqs.move_tasks import MoveTasks
from foqs.sqs.queue_actions import QueueActions
from foqs_contract.call_table import CALLS, CallRow

_CONFIGURE: Final = "purgeTopic"
"""The settings of a queue have no call of their own in the contract: `updateNamespace`, which writes the same document, is
for administrators of the cluster. They need what emptying the queue needs: ADMIN on its namespace."""

Handler: TypeAlias = Callable[[ActionRequest], Awaitable[Mapping[str, Any]]]


class Action(NamedTuple):
    """One action of SQS, and how this host serves it.

    `row` is that of the call of the contract that does the same: it says who may do it, and whether it is noted.
    `target_of` returns what it concerns: the grant must be on the namespace of its account. `absent` returns the error
    for an account that does not exist.
    """

    handle: Handler
    row: CallRow
    target_of: Callable[[ActionRequest], ActionTarget]
    absent: Callable[[], SqsError] = queue_does_not_exist


def actions(queues: QueueActions, messages: MessageActions, tasks: MoveTasks) -> Mapping[str, Action]:
    """Return the actions by name. Each needs what the call of the contract needs that does the same."""
    of_call, of_queue, of_name = (
        queue_actions.target_of_call,
        queue_actions.target_of_queue,
        queue_actions.target_of_name,
    )
    table: list[tuple[str, Handler, str, Callable[[ActionRequest], ActionTarget]]] = [
        ("SendMessage", messages.send_message, "enqueue", of_queue),
        ("SendMessageBatch", messages.send_message_batch, "enqueue", of_queue),
        ("ReceiveMessage", messages.receive_message, "dequeue", of_queue),
        ("DeleteMessage", messages.delete_message, "ack", of_queue),
        ("DeleteMessageBatch", messages.delete_message_batch, "ack", of_queue),
        ("ChangeMessageVisibility", messages.change_message_visibility, "extendLease", of_queue),
        ("ChangeMessageVisibilityBatch", messages.change_message_visibility_batch, "extendLease", of_queue),
        ("CreateQueue", queues.create_queue, _CONFIGURE, of_name),
        ("DeleteQueue", queues.delete_queue, "purgeTopic", of_queue),
        ("PurgeQueue", queues.purge_queue, "purgeTopic", of_queue),
        ("SetQueueAttributes", queues.set_queue_attributes, _CONFIGURE, of_queue),
        ("TagQueue", queues.tag_queue, _CONFIGURE, of_queue),
        ("UntagQueue", queues.untag_queue, _CONFIGURE, of_queue),
        ("AddPermission", queues.add_permission, _CONFIGURE, of_queue),
        ("RemovePermission", queues.remove_permission, _CONFIGURE, of_queue),
        ("GetQueueAttributes", queues.get_queue_attributes, "getActiveTopics", of_queue),
        ("GetQueueUrl", queues.get_queue_url, "getNamespace", queue_actions.target_of_owner),
        ("ListQueues", queues.list_queues, "getNamespace", of_call),
        ("ListQueueTags", queues.list_queue_tags, "getNamespace", of_queue),
        ("ListDeadLetterSourceQueues", queues.list_dead_letter_source_queues, "getNamespace", of_queue),
    ]
    of_tasks: list[tuple[str, Handler, str, Callable[[ActionRequest], ActionTarget]]] = [
        ("StartMessageMoveTask", tasks.start, "startBulkJob", move_tasks.target_of_source),
        ("CancelMessageMoveTask", tasks.cancel, "controlBulkJob", move_tasks.target_of_task),
        ("ListMessageMoveTasks", tasks.list_tasks, "listBulkJobs", move_tasks.target_of_source),
    ]
    no_source = partial(move_tasks.resource_not_found, "SourceArn")
    return {
        **{name: Action(handle, CALLS[call], target_of) for name, handle, call, target_of in table},
        **{name: Action(handle, CALLS[call], target_of, no_source) for name, handle, call, target_of in of_tasks},
    }
