"""What the queues of a namespace say of the idempotency keys of their topics.

Apart from the settings of the namespace, on which waiting dequeues depend: a queue that is created or deleted ends none
of them. Always true: all of it follows from one version of the catalog's document. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from foqs.catalog.document import QueueEntry
from foqs_contract.key_slots import group_prefix, topic_prefix


@dataclass(slots=True, frozen=True)
class TopicKeys:
    """The topics of a namespace whose keys are unlike those of other topics.

    Attributes:
        shared: topics whose keys are unique among all their groups.
        alone: topics in which a known key makes a repeat, whatever else an item with a group is.
    """

    shared: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()

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
    )
