"""The change log of a host's topics: which topics changed since a version.

Holds `ChangeLog`. Always true: each change has its own version, higher than all
earlier ones; a reader that has all changes up to a version, and gets all changes
since it, knows all existing topics and no deleted one. A full listing ends, whatever
changes meanwhile. The first version is random, so a version of another log, or
of this host's earlier run, is not mistaken for one of this log. A topic is
listed once, with its last change. Pure; knows nothing of what a topic holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from foqs.core.items.item import TopicName

_SUPERSEDED_MIN: Final = 1_000
"""The least superseded entries that are worth a compaction."""


@dataclass(slots=True, frozen=True)
class Changes:
    """A page of changes of topics.

    Attributes:
        version: with this page and the earlier ones, a reader has all changes up to this version.
        topics: each once, in the order of their last changes.
        is_full: whether this page starts a full listing: all existing topics, on this and the next pages.
        full_since: during a full listing, the version at which it started.
        has_more: whether more changes follow `version`.
    """

    version: int
    topics: list[TopicName]
    is_full: bool
    full_since: int | None
    has_more: bool


class ChangeLog:
    """Records changes of topics.

    Args:
        first_version: a random number below 2^62: the version before any change.
        tombstones_max: how many deleted topics are remembered; a reader that missed a forgotten one gets a full listing.
    """

    def __init__(self, first_version: int, tombstones_max: int) -> None:
        self._tombstones_max = tombstones_max
        self._first_version = first_version
        self._last_version = first_version
        self._floor_version = first_version
        """The highest version of a forgotten deletion: readers below it may have missed a deletion."""
        self._version_of: dict[TopicName, int] = {}
        """The version of the last change of each existing topic and of each tombstone."""
        self._tombstones: OrderedDict[TopicName, None] = OrderedDict()
        """Remembered deleted topics, oldest first."""
        self._logged_topics: list[TopicName] = []
        self._logged_versions: list[int] = []
        """With `_logged_topics`, every change; an entry is superseded if `_version_of` has another version."""

    def __len__(self) -> int:
        """Return the number of existing topics."""
        return len(self._version_of) - len(self._tombstones)

    def __contains__(self, topic: TopicName) -> bool:
        """Return whether the topic exists, as last recorded."""
        return topic in self._version_of and topic not in self._tombstones

    def record(self, topic: TopicName, *, exists: bool) -> None:
        """Record that a topic was created or changed, or (not `exists`) deleted."""
        if exists:
            self._tombstones.pop(topic, None)
        elif topic in self._tombstones or topic not in self._version_of:
            return  # no reader can know the topic
        else:
            self._tombstones[topic] = None
        self._last_version += 1
        self._version_of[topic] = self._last_version
        self._logged_topics.append(topic)
        self._logged_versions.append(self._last_version)
        while len(self._tombstones) > self._tombstones_max:
            forgotten, _ = self._tombstones.popitem(last=False)
            self._floor_version = max(self._floor_version, self._version_of.pop(forgotten))
        if len(self._logged_topics) > 2 * len(self._version_of) + _SUPERSEDED_MIN:
            self._compact()

    def changes_since(self, version: int | None, full_since: int | None, topics_max: int) -> Changes:
        """Return at most `topics_max` topics that changed after a version; for an unknown version, start a full listing.

        Args:
            full_since: `full_since` of the previous page, if more pages were to follow it.
        """
        # A page of a full listing may end below the floor: deletions forgotten there are older than the listing.
        version_min = self._floor_version if full_since is None else self._first_version
        is_full = version is None or not version_min <= version <= self._last_version
        if is_full:
            full_since = self._last_version
        listing_start = -1 if full_since is None else full_since
        topics: list[TopicName] = []
        start = 0 if is_full or version is None else bisect_right(self._logged_versions, version)
        for place in range(start, len(self._logged_topics)):
            topic, changed_at = self._logged_topics[place], self._logged_versions[place]
            if self._version_of.get(topic) != changed_at or (changed_at <= listing_start and topic in self._tombstones):
                continue
            if len(topics) == topics_max:
                return Changes(changed_at - 1, topics, is_full, full_since, has_more=True)
            topics.append(topic)
        # A deletion during the listing may be forgotten already. A version below the floor then makes the reader start again.
        missed = full_since is not None and full_since < self._floor_version
        return Changes(listing_start if missed else self._last_version, topics, is_full, full_since, has_more=False)

    def _compact(self) -> None:
        kept = [
            (topic, version)
            for topic, version in zip(self._logged_topics, self._logged_versions, strict=True)
            if self._version_of.get(topic) == version
        ]
        self._logged_topics = [topic for topic, _ in kept]
        self._logged_versions = [version for _, version in kept]
