"""Long polls: who waits for which topics, first come first served.

Always true: whoever is served, or gives up, stands in no queue any more. Knows
nothing of what a waiter does when its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from foqs.core.items.item import TopicName


class Waiter(Protocol):
    """Somebody who waits for items of `topics`, all of one namespace, each with how many it wants."""

    @property
    def topics(self) -> Mapping[TopicName, int]: ...


W = TypeVar("W", bound=Waiter)


class Waiters(Generic[W]):
    """The queues of waiters, by topic."""

    def __init__(self) -> None:
        self._by_topic: dict[TopicName, dict[W, None]] = {}
        self._by_namespace: dict[str, dict[W, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def has_waiters(self, namespace: str) -> bool:
        """Somebody waits for some topic of this namespace."""
        return namespace in self._by_namespace

    def add(self, waiter: W) -> None:
        """Queues it up for each of its topics."""
        for topic in waiter.topics:
            self._by_topic.setdefault(topic, {})[waiter] = None
        self._by_namespace.setdefault(next(iter(waiter.topics))[0], {})[waiter] = None

    def remove(self, waiter: W) -> None:
        """Takes it out of every queue; safe to repeat."""
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
        """Who has waited longest for the topic; None when nobody does."""
        queue = self._by_topic.get(topic)
        return next(iter(queue)) if queue else None

    def for_topic(self, topic: TopicName) -> list[W]:
        """Who waits for the topic, the longest first."""
        return list(self._by_topic.get(topic, ()))

    def waiter_count(self, topic: TopicName) -> int:
        """How many wait for the topic."""
        return len(self._by_topic.get(topic, ()))

    def for_namespace(self, namespace: str) -> list[W]:
        """Who waits for some topic of this namespace, the longest first."""
        return list(self._by_namespace.get(namespace, ()))

    def all_waiters(self) -> list[W]:
        """All that wait."""
        return [waiter for waiters in self._by_namespace.values() for waiter in waiters]
