"""Planted bugs of the groups of items. See `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from foqs.core.flush import flush_plan
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.writes import Writes
from foqs.core.items.item import KeyedAbsoluteTimeItem, KeyedItem, NewItem, Row
from foqs.core.items.item_with_history import ItemWithHistory
from foqs.core.items.life import EventKind
from foqs.core.journal.journal_events import FlushEvents
from foqs.queue import placement
from foqs.rpc import codec
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.journaled import journal_recovery
from foqs_contract.key_slots import group_prefix
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def group_lost_at_insert() -> None:
    """A new row has no group."""

    def insert(item: NewItem, number: int, accepted_ms: int, now_ms: int) -> Row:
        return replace(original(item, number, accepted_ms, now_ms), item_group=None)

    original = plant(flush_plan, "new_row", insert)


def group_lost_at_nack() -> None:
    """A nack drops the group of its item."""

    def with_nack(self: FlushPlan) -> Writes:
        for kind, _, row in self.changed:
            if kind is EventKind.NACK:
                row.item_group = None
        return original(self)

    original = plant(FlushPlan, "writes", with_nack)


def group_lost_at_move() -> None:
    """An item that moves to another topic leaves its group."""

    def move(self: ShardTables, old_number: int, row: Row) -> None:
        original(self, old_number, row)
        if row.id in self.rows:
            self.rows[row.id].item_group = None

    original = plant(ShardTables, "move", move)


def group_lost_in_journal() -> None:
    """A host that reads a journal does not read the groups."""

    def decode(data: bytes) -> FlushEvents:
        events = original(data)
        for row in events.added:
            row.item_group = None
        return events

    original = plant(journal_recovery, "decode_events", decode)


def keys_of_all_groups() -> None:
    """A key names one item among all groups."""
    plant(codec, "group_prefix", lambda namespace, group: group_prefix(namespace, b"one for all"))


def groups_in_any_shard() -> None:
    """An item with a group and without a key goes to the shard with the shortest queue."""
    plant(placement, "_BOUND_TYPES", frozenset((KeyedItem, KeyedAbsoluteTimeItem, ItemWithHistory)))


BUGS: Final[Mapping[str, Bug]] = {
    "group-lost-at-insert": Bug(group_lost_at_insert, (2,)),
    "group-lost-at-nack": Bug(group_lost_at_nack, (2,)),
    "group-lost-at-move": Bug(group_lost_at_move, (2,)),
    "keys-of-all-groups": Bug(keys_of_all_groups, (3, 20)),
    "groups-in-any-shard": Bug(groups_in_any_shard, (25,)),
}
JOURNAL_BUGS: Final[Mapping[str, Bug]] = {"group-lost-in-journal": Bug(group_lost_in_journal, (2,))}
"""Bugs that show if the stores journal."""
