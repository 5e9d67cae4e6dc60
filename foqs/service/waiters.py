"""Long polls: who waits for which topics, first come first served.

Always true: whoever is served, or gives up, stands in no queue any more. Knows
nothing of what a waiter does when its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from foqs.core.item import TopicName


class Waiter(Protocol):
    """Somebody who waits for items of `topics`, all of one namespace, each with how many it wants."""

    @property
    def topics(self) -> Mapping[TopicName, int]: ...


W = TypeVar("W", bound=Waiter)


class Waiters(Generic[W]):
    """The queues of waiters, by topic."""

    def __init__(self) -> None:
        self._queues: dict[TopicName, dict[W, None]] = {}
        self._namespaces: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waits(self, namespace: str) -> bool:
        """Somebody waits for some topic of this namespace."""
        return namespace in self._namespaces

    def join(self, waiter: W) -> None:
        """Queues it up for each of its topics."""
        for topic in waiter.topics:
            self._queues.setdefault(topic, {})[waiter] = None
        namespace = next(iter(waiter.topics))[0]
        self._namespaces[namespace] = self._namespaces.get(namespace, 0) + 1
        self._count += 1

    def leave(self, waiter: W) -> None:
        """Takes it out of every queue; safe to repeat."""
        found = False
        for topic in waiter.topics:
            queue = self._queues.get(topic)
            if queue is not None and waiter in queue:
                found = True
                del queue[waiter]
                if not queue:
                    del self._queues[topic]
        if found:
            self._count -= 1
            namespace = next(iter(waiter.topics))[0]
            self._namespaces[namespace] -= 1
            if not self._namespaces[namespace]:
                del self._namespaces[namespace]

    def first(self, topic: TopicName) -> W | None:
        """Who has waited longest for the topic; None when nobody does."""
        queue = self._queues.get(topic)
        return next(iter(queue)) if queue else None

    def of(self, topic: TopicName) -> list[W]:
        """Who waits for the topic, the longest first."""
        return list(self._queues.get(topic, ()))

    def waiting(self, topic: TopicName) -> int:
        """How many wait for the topic."""
        return len(self._queues.get(topic, ()))

    def everybody(self) -> list[W]:
        """All that wait."""
        return list(dict.fromkeys(waiter for queue in self._queues.values() for waiter in queue))
