"""Redrive policies: how often a message is received before it is a dead letter, and the queue that it then goes to.

Always true: a policy is in force only while its target is another queue of the same
namespace that is of the same type and scope and allows the source. A stored text that is not a policy is none. Of the ARNs
in a stored policy only the names count: their accounts are checked when a redrive policy is set, and hosts without an SQS
server, which move dead letters too, know no accounts. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foqs.catalog.document import QueueEntry
from foqs.sqs import queue_attributes
from foqs.sqs.identifiers import QueueName, parse_arn


@dataclass(slots=True, frozen=True)
class Redrive:
    """A redrive policy that is in force.

    Attributes:
        source, target: the names of two queues of the namespace.
        receives_max: a message that was received so often goes to `target` instead of being received again.
        retention_ms: the retention of messages in the target.
    """

    namespace: str
    source: str
    target: str
    receives_max: int
    retention_ms: int


def redrive_in_force(namespace: str, name: str, queues: Mapping[str, QueueEntry]) -> Redrive | None:
    """Return the policy of a queue that is in force; None without one. `queues` are those of the namespace by name."""
    entry = queues.get(name)
    target = None if entry is None else dead_letter_queue(entry)
    if entry is None or target is None or target.name == name or target.name not in queues:
        return None
    if target.is_fifo != QueueName(target.account, name).is_fifo:
        return None
    if queues[target.name].keys_in_topic != entry.keys_in_topic:
        return None
    receives_max = _parse(entry, "RedrivePolicy").get("maxReceiveCount")
    sources = allowed_sources(queues[target.name])
    is_allowed = sources is None or any(source.name == name for source in sources)
    if not isinstance(receives_max, int) or not is_allowed:
        return None
    retention_ms = queue_attributes.number(queues[target.name].attributes, "MessageRetentionPeriod") * 1_000
    return Redrive(namespace, name, target.name, receives_max, retention_ms)


def dead_letter_queue(entry: QueueEntry) -> QueueName | None:
    """Return the target of a queue's policy; None without one."""
    arn = _parse(entry, "RedrivePolicy").get("deadLetterTargetArn")
    return parse_arn(arn) if isinstance(arn, str) else None


def allowed_sources(target: QueueEntry) -> list[QueueName] | None:
    """Return the queues that may use a queue for dead letters by its RedriveAllowPolicy; None: all of its namespace."""
    policy = _parse(target, "RedriveAllowPolicy")
    permission = policy.get("redrivePermission", "allowAll")
    if permission == "allowAll":
        return None
    arns = policy.get("sourceQueueArns") if permission == "byQueue" else None
    sources = [parse_arn(arn) for arn in arns if isinstance(arn, str)] if isinstance(arns, list) else []
    return [queue for queue in sources if queue is not None]


def sources_of(target: str, queues: Mapping[str, QueueEntry]) -> list[str]:
    """Return the names of the queues whose policy names this target, sorted."""
    targets = {name: dead_letter_queue(entry) for name, entry in queues.items()}
    return sorted(name for name, queue in targets.items() if queue is not None and queue.name == target)


def _parse(entry: QueueEntry, name: str) -> Mapping[str, Any]:
    text = entry.attributes.get(name)
    if not text:
        return {}
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return policy if isinstance(policy, dict) else {}
