"""The dequeues that wait for items, by topic, first come first served.

Always true: a dequeue that was served or gave up is in no queue. Knows nothing
of what a waiter does when it is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from foqs.core.items.item import TopicName


class Waiter(Protocol):
    """A caller that waits for items of some topics of one namespace."""

    @property
    def topics(self) -> Mapping[TopicName, int]:
        """The number of items wanted of each topic."""
        ...


W = TypeVar("W", bound=Waiter)


class Waiters(Generic[W]):
    """The queues of waiters, by topic."""

    def __init__(self) -> None:
        self._by_topic: dict[TopicName, dict[W, None]] = {}
        self._by_namespace: dict[str, dict[W, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def has_waiters(self, namespace: str) -> bool:
        """Return whether a waiter wants a topic of this namespace."""
        return namespace in self._by_namespace

    def add(self, waiter: W) -> None:
        """Add the waiter to the queue of each of its topics."""
        for topic in waiter.topics:
            self._by_topic.setdefault(topic, {})[waiter] = None
        self._by_namespace.setdefault(next(iter(waiter.topics))[0], {})[waiter] = None

    def remove(self, waiter: W) -> None:
        """Remove the waiter from all queues; safe to repeat."""
        namespace = next(iter(waiter.topics))[0]
        others = self._by_namespace.get(namespace)
        if others is None or waiter not in others:
            return
        del others[waiter]
        if not others:
            del self._by_namespace[namespace]
        for topic in waiter.topics:
            queue = self._by_topic[topic]
            del queue[waiter]
            if not queue:
                del self._by_topic[topic]

    def first(self, topic: TopicName) -> W | None:
        """Return the oldest waiter for the topic; None if there is none."""
        queue = self._by_topic.get(topic)
        return next(iter(queue)) if queue else None

    def for_topic(self, topic: TopicName) -> list[W]:
        """Return the waiters for the topic, oldest first."""
        return list(self._by_topic.get(topic, ()))

    def waiter_count(self, topic: TopicName) -> int:
        """Return the number of waiters for the topic."""
        return len(self._by_topic.get(topic, ()))

    def for_namespace(self, namespace: str) -> list[W]:
        """Return the waiters for any topic of this namespace, oldest first."""
        return list(self._by_namespace.get(namespace, ()))

    def all_waiters(self) -> list[W]:
        """Return all waiters."""
        return [waiter for waiters in self._by_namespace.values() for waiter in waiters]
