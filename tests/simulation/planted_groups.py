"""Planted bugs of the groups of items. See `planted`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, cast

from foqs.catalog import topic_keys
from foqs.core.flush import planning
from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.operation import Leases
from foqs.core.flush.run_ends import NO_RUN_ENDS
from foqs.core.flush.writes import Writes
from foqs.core.groups import group_page
from foqs.core.groups.group import Group
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.places import GroupPlace, Placed, line_place
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items import life
from foqs.core.items.item import NUMBER_MAX, KeyedAbsoluteTimeItem, KeyedItem, NewItem, OrderKey, Row, State, TopicName
from foqs.core.items.item_with_history import ItemWithHistory
from foqs.core.items.life import Event, EventKind, FlushContext, Rule, Transition
from foqs.core.journal.journal_events import FlushEvents
from foqs.core.memory.ready_index import ReadyIndex
from foqs.queue import placement
from foqs.shard import flush_planner, shard_memory
from foqs.shard.flush_planner import FlushPlanner
from foqs.shard.shard import OwnedShard
from foqs.shard.shard_memory import ShardMemory
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.journaled import journal_recovery
from foqs_contract.key_slots import group_prefix
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def group_lost_at_insert() -> None:
    """A new row has no group."""

    def insert(item: NewItem, number: int, accepted_ms: int, now_ms: int) -> Row:
        return replace(original(item, number, accepted_ms, now_ms), item_group=None)

    original = plant(planning, "new_row", insert)


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
    plant(topic_keys, "group_prefix", lambda namespace, group: group_prefix(namespace, b"one for all"))


def groups_in_any_shard() -> None:
    """An item with a group and without a key goes to the shard with the shortest queue."""
    plant(placement, "_BOUND_TYPES", frozenset((KeyedItem, KeyedAbsoluteTimeItem, ItemWithHistory)))


def one_lease_too_many() -> None:
    """A strict group counts its reservations and not its leases."""

    def run(self: Group, run_max: int) -> list[OrderKey]:
        leased, self.leased = self.leased, []
        found = original(self, run_max)
        self.leased = leased
        return found

    original = plant(Group, "run", run)


def permit_kept_at_give_back() -> None:
    """A reservation that is given back keeps its permit."""

    def release(self: ReadyIndex, topic: TopicName, order_keys: Iterable[OrderKey]) -> bool:
        source = self._sources.get(topic)
        if source is None:
            return original(self, topic, order_keys)
        return sum([self._reserved.pop(key & NUMBER_MAX, None) is not None for key in order_keys]) > 0

    original = plant(ReadyIndex, "release_reservations", release)


def returned_item_passed() -> None:
    """An item that was delivered before waits like others in a strict group."""
    for module in (shard_memory, group_page):
        plant(module, "line_place", lambda row, *, is_strict: line_place(row, is_strict=False))


def ended_lease_extended() -> None:
    """A lease that has ended may be extended in a topic with a limit."""

    def extend(event: Event, row: Row, moment: FlushContext) -> Transition:
        return original(event, row, replace(moment, limited_topics=()))

    rule = life.TABLE[State.READY, EventKind.EXTEND]
    original = rule.decide
    table = cast("dict[tuple[State, EventKind], Rule]", life.TABLE)
    table[State.READY, EventKind.EXTEND] = Rule(extend, rule.outcomes)


def new_items_delivered_directly() -> None:
    """A new item goes to a waiting dequeue without a permit."""

    def assign(self: FlushPlanner, batch: Batch) -> list[Part[Leases]]:
        limited, self._memory.limited_topics = self._memory.limited_topics, {}
        deliveries = original(self, batch)
        self._memory.limited_topics = limited
        return deliveries

    original = plant(FlushPlanner, "_assign_to_waiters", assign)


def limits_unread_at_takeover() -> None:
    """A new owner does not look at the limits of its topics."""
    plant(OwnedShard, "follow_group_rules", lambda self: None)


def permit_kept_at_cancel() -> None:
    """A leased item that is cancelled keeps its permit."""

    def follow(self: TopicGroups, name: str, old: Placed | None, new: Placed | None) -> None:
        if new is None and old is not None and old[0] is GroupPlace.LEASED and old[1] & NUMBER_MAX in cancelled:
            return
        original(self, name, old, new)

    def apply(self: ShardMemory, plan: FlushPlan) -> dict[TopicName, None]:
        cancelled.clear()
        cancelled.update([row.id for row in plan.deleted.get(EventKind.CANCEL, ())])
        return original_apply(self, plan)

    cancelled: set[int] = set()
    original = plant(TopicGroups, "follow", follow)
    original_apply = plant(ShardMemory, "_follow_groups", apply)


def permits_kept_at_purge() -> None:
    """A purge leaves the groups of its topic as they were."""
    plant(LimitedTopic, "purge", lambda self: None)


def run_goes_on_behind_an_early_end() -> None:
    """The leases behind an item of a run that has ended early stay."""
    plant(flush_planner, "find_run_ends", lambda batch, runs, is_free: NO_RUN_ENDS)


def superseded_token_acks() -> None:
    """A superseded item keeps its token as its last one, so its consumer may ack it."""

    def supersede(event: Event, row: Row, moment: FlushContext) -> Transition:
        found = original(event, row, moment)
        if found.row is not None:
            found.row.token = row.token
        return found

    rule = life.TABLE[State.LEASED, EventKind.SUPERSEDE]
    original = rule.decide
    table = cast("dict[tuple[State, EventKind], Rule]", life.TABLE)
    table[State.LEASED, EventKind.SUPERSEDE] = Rule(supersede, rule.outcomes)


def second_run_begins() -> None:
    """A group goes on as soon as one item of its run is settled."""

    def run(self: Group, run_max: int) -> list[OrderKey]:
        leased = self.leased
        if 0 < len(leased) < sum(map(len, self.noted_runs)):
            self.leased = []
        found = original(self, run_max)
        self.leased = leased
        return found

    original = plant(Group, "run", run)


def run_locks_nothing_behind_its_head() -> None:
    """The items behind the head of a run lock nothing when they are leased."""

    def follow(self: TopicGroups, name: str, old: Placed | None, new: Placed | None) -> None:
        group = self.get(name)
        is_second = self.limit == 1 and new is not None and new[0] is GroupPlace.LEASED and group is not None
        if is_second and group is not None and group.leased and old is not None and old[0] is not GroupPlace.LEASED:
            new = None
        original(self, name, old, new)

    original = plant(TopicGroups, "follow", follow)


def run_out_of_order() -> None:
    """The items of a run come in the wrong order."""

    def run(self: Group, run_max: int) -> list[OrderKey]:
        found = original(self, run_max)
        return [*found[:1], *reversed(found[1:])]

    original = plant(Group, "run", run)


LIMIT_BUGS: Final[Mapping[str, Bug]] = {
    "one-lease-too-many": Bug(one_lease_too_many, (13, 23), first_seed=2),
    "permit-kept-at-give-back": Bug(permit_kept_at_give_back, (11, 13)),
    "returned-item-passed": Bug(returned_item_passed, (24,)),
    "new-items-delivered-directly": Bug(new_items_delivered_directly, (23,), first_seed=2),
    "ended-lease-extended": Bug(ended_lease_extended, (23,), first_seed=1),
    "permit-kept-at-cancel": Bug(permit_kept_at_cancel, (11, 13), first_seed=13),
    "permits-kept-at-purge": Bug(permits_kept_at_purge, (11, 13), first_seed=2),
    "limits-unread-at-takeover": Bug(limits_unread_at_takeover, (23,)),
    "run-goes-on-behind-an-early-end": Bug(run_goes_on_behind_an_early_end, (24,), first_seed=1),
    "superseded-token-acks": Bug(superseded_token_acks, (24,), first_seed=1),
    "second-run-begins": Bug(second_run_begins, (13, 23, 24), first_seed=1),
    "run-locks-nothing-behind-its-head": Bug(run_locks_nothing_behind_its_head, (13, 23, 24), first_seed=1),
    "run-out-of-order": Bug(run_out_of_order, (24,), first_seed=1),
}
"""Bugs that show if the topics have limits."""
BUGS: Final[Mapping[str, Bug]] = {
    "group-lost-at-insert": Bug(group_lost_at_insert, (2,)),
    "group-lost-at-nack": Bug(group_lost_at_nack, (2,)),
    "group-lost-at-move": Bug(group_lost_at_move, (2,)),
    "keys-of-all-groups": Bug(keys_of_all_groups, (3, 20)),
    "groups-in-any-shard": Bug(groups_in_any_shard, (25,)),
}
JOURNAL_BUGS: Final[Mapping[str, Bug]] = {"group-lost-in-journal": Bug(group_lost_in_journal, (2,))}
"""Bugs that show if the stores journal."""
