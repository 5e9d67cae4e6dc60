"""Short ways to make keys, and ready indexes in a known state."""

from __future__ import annotations

from foqs.core.item import Key, TopicName, pack_key
from foqs.core.ready import ReadyIndex, Refill

TOPIC = ("ns", "t")
OTHER = ("ns", "u")
ALL = 1_000_000


def k(number: int, priority: int = 0, after_ms: int = 0) -> Key:
    return pack_key(priority, after_ms, number)


def ks(*numbers: int) -> list[Key]:
    return [k(number) for number in numbers]


def filled(*keys: Key, window: int = 100, total: int = 1_000, topic: TopicName = TOPIC) -> ReadyIndex:
    index = ReadyIndex(window, total)
    index.add_many(topic, sorted(keys))
    return index


def window(index: ReadyIndex, topic: TopicName = TOPIC) -> list[Key]:
    return index.peek(topic, ALL)


def reading(index: ReadyIndex, topic: TopicName = TOPIC) -> Refill:
    refill = index.begin_refill(topic)
    assert refill is not None
    return refill


def refilled(index: ReadyIndex, keys: list[Key], *, complete: bool, topic: TopicName = TOPIC) -> None:
    index.end_refill(reading(index, topic), keys, complete)


def lowered(*keys: Key) -> ReadyIndex:
    """An index that holds `keys` of a table that may hold more."""
    index = ReadyIndex(100, 1_000)
    index.discover(TOPIC)
    refilled(index, sorted(keys), complete=False)
    return index
