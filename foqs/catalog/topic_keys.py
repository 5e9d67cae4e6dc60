"""What the queues of a namespace say of the idempotency keys of their topics.

Apart from the settings of the namespace, on which waiting dequeues depend: a queue that is created or deleted ends none
of them. Always true: all of it follows from one version of the catalog's document; a new item with the key of a queue is
accepted only by this queue's rules. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from foqs.catalog.document import QueueEntry
from foqs_contract.errors import Unavailable
from foqs_contract.key_slots import group_prefix, topic_prefix

QUEUE_KEY_TAG: Final = b"sqs-fifo-"
"""What the keys of messages of FIFO queues begin with. A key of another item with a group may not."""
_UNREAD_RETRY_MS: Final = 200
"""The time after which a host that has not read a queue yet is asked again."""


def queue_key_start(since_ms: int) -> bytes:
    """Return what the keys of a queue begin with: they name the time of its creation, `QueueEntry.keys_since_ms`."""
    return b"%b%d-" % (QUEUE_KEY_TAG, since_ms)


@dataclass(slots=True, frozen=True)
class TopicKeys:
    """The topics of a namespace whose keys are unlike those of other topics.

    Attributes:
        shared: topics whose keys are unique among all their groups.
        alone: topics in which a known key makes a repeat, whatever else an item with a group is.
        since_ms: when the queue of each topic was created.
    """

    shared: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()
    since_ms: Mapping[str, int] = field(default_factory=dict)

    def check_key(self, topic: str, key: bytes) -> None:
        """Check that the key of a new item with a group, if it is one of a queue, is one of the queue that this host has read.

        Otherwise the item would be placed and remembered by the rules of another queue, or of none.

        Raises:
            Unavailable: the host that made the item knows another version of the catalog.
        """
        if key.startswith(QUEUE_KEY_TAG):
            since_ms = self.since_ms.get(topic)
            if since_ms is None or not key.startswith(queue_key_start(since_ms)):
                raise Unavailable(
                    f"this host has not read the queue {topic!r} yet, or not that it was deleted; try again. A producer of its "
                    f"own must choose a key that does not begin with {QUEUE_KEY_TAG.decode()}",
                    field="idempotency_key",
                    retry_after_ms=_UNREAD_RETRY_MS,
                )

    def prefix_of(self, namespace: str, topic: str, group: bytes) -> bytes:
        """Return what stands before the key of an item with a group. Its slot is that of the item, also of one without a key."""
        if topic in self.shared:
            return topic_prefix(namespace.encode(), topic.encode())
        return group_prefix(namespace.encode(), group)


NO_TOPIC_KEYS: Final = TopicKeys()


def topic_keys(queues: Mapping[str, QueueEntry]) -> TopicKeys:
    """Return what the queues of a namespace, by name, say of the keys of their topics."""
    if not queues:
        return NO_TOPIC_KEYS
    return TopicKeys(
        shared=frozenset(topic for topic, queue in queues.items() if queue.keys_in_topic),
        alone=frozenset(topic for topic, queue in queues.items() if queue.keys_alone),
        since_ms={topic: queue.keys_since_ms for topic, queue in queues.items()},
    )
