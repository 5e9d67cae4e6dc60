"""What places do not say of the items of strict groups: their leased runs, and when those that back off are READY again.

Always true between two flushes: `leased_runs` has each leased item of a run of more than one. If an item of a run comes back
before the delivered items of its topic were read, the leases behind it are found when this read ends. In topics that are not
strict, nothing is here. Knows no head and no page.
"""

from __future__ import annotations

from typing import Final

from foqs.core.groups.group import STRICT, Group
from foqs.core.groups.places import group_name, run_key, token_of
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey, Row, State
from foqs.core.items.life import Event, EventKind


class StrictItems:
    """The items of the strict groups of one topic.

    Attributes:
        leased_runs: the run of each leased item, by its number: those that have more than one.
        backoff_ends: when the items that back off are READY again, by number: the keys have their places.
    """

    def __init__(self, groups: TopicGroups) -> None:
        self.leased_runs: Final[dict[int, tuple[int, ...]]] = {}
        self.backoff_ends: Final[dict[int, int]] = {}
        self._groups: Final = groups
        self._ended: Final[dict[tuple[str, int], OrderKey]] = {}
        """While delivered items are read: the first item of each run, by group and token, that came back."""
        self._superseded: dict[int, int] = {}
        """Leased items, and their tokens, that this read has found behind one of their run that came back."""

    def note_row(self, old: Row | None, new: Row | None) -> None:
        """Note a changed row of a topic with strict groups, before and after: when it is READY again, and that it came back."""
        if old is not None and old.state is State.DEFERRED:
            self.backoff_ends.pop(old.id, None)
        if new is None or not new.attempt or new.item_group is None:
            return
        if new.state is State.DEFERRED:
            self.backoff_ends[new.id] = new.ready_at_ms
        if not self._groups.is_read and new.token and new.state in (State.DEFERRED, State.READY):
            self._note_ended(new)

    def _note_ended(self, row: Row) -> None:
        """Note that an item came back, if others of its run may still be leased."""
        name, key = group_name(row), run_key(row)
        token = token_of(key)
        if State.LEASED not in self._groups.unread_states:
            group = self._groups.get(name)
            if group is None or not group.has_leased(token):
                return
        self._ended[name, token] = min(key, self._ended.get((name, token), key))

    def note_runs(self, group: Group) -> None:
        """Note the leased runs of a group of which an item was leased, or has ended."""
        for run in group.noted_runs:
            for number in run:
                del self.leased_runs[number]
        group.noted_runs = group.leased_runs() if self._groups.limit == STRICT else ()
        for run in group.noted_runs:
            self.leased_runs.update(dict.fromkeys(run, run))

    def find_superseded(self) -> None:
        """Find leases behind items that came back: all delivered items were read."""
        for (name, token), key in self._ended.items():
            group = self._groups.get(name)
            if group is not None:
                self._superseded.update(dict.fromkeys(group.leased_behind(key), token))
        self._ended.clear()

    def take_superseded(self) -> list[Event]:
        """Return the events that supersede leased items which the read of delivered items has found behind ones that came back, once.

        Their leases are over: an item before them in their run ended early while nobody knew the group.
        """
        superseded, self._superseded = self._superseded, {}
        return [Event(EventKind.SUPERSEDE, number, token=token) for number, token in superseded.items()]

    def forget_all(self) -> None:
        """Forget all items."""
        self.leased_runs.clear()
        self.backoff_ends.clear()
        self._ended.clear()
        self._superseded.clear()

    def check(self) -> None:
        """Assert that the leased runs of all groups are known, and no others."""
        groups = self._groups.by_name.values()
        for group in groups:
            runs = group.leased_runs() if self._groups.limit == STRICT else []
            assert [*group.noted_runs] == runs, (
                f"{group.name} has leased {runs}, and its topic knows {group.noted_runs}"
            )
        noted = [run for group in groups for run in group.noted_runs]
        assert self.leased_runs == {number: run for run in noted for number in run}
