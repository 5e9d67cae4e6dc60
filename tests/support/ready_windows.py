"""Functions that make order keys, and ready indexes in a known state."""

from __future__ import annotations

from foqs.core.items.item import OrderKey, TopicName, pack_order_key
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.ready_window import Refill

TOPIC = ("ns", "t")
OTHER = ("ns", "u")
ALL = 1_000_000


def order_key(number: int, priority: int = 0, after_ms: int = 0) -> OrderKey:
    return pack_order_key(priority, after_ms, number)


def order_keys(*numbers: int) -> list[OrderKey]:
    return [order_key(number) for number in numbers]


def filled_index(*keys: OrderKey, window: int = 100, total: int = 1_000, topic: TopicName = TOPIC) -> ReadyIndex:
    index = ReadyIndex(window, total)
    index.add_many(topic, sorted(keys))
    return index


def window(index: ReadyIndex, topic: TopicName = TOPIC) -> list[OrderKey]:
    return index.peek(topic, ALL)


def reading(index: ReadyIndex, topic: TopicName = TOPIC) -> Refill:
    refill = index.start_refill(topic)
    assert refill is not None
    return refill


def finish_refill(index: ReadyIndex, keys: list[OrderKey], *, complete: bool, topic: TopicName = TOPIC) -> None:
    index.finish_refill(reading(index, topic), keys, complete)


def index_over_larger_table(*keys: OrderKey) -> ReadyIndex:
    """An index that holds `keys` of a table that may hold more."""
    index = ReadyIndex(100, 1_000)
    index.discover(TOPIC)
    finish_refill(index, sorted(keys), complete=False)
    return index
