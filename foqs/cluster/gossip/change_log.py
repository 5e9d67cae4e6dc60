"""What has changed here since a version: which topics a host has to tell to one that had heard of the others.

Holds `Journal`. Always true: each change has a version of its own, higher than
all before; who has heard everything up to a version, and hears everything since
it, knows all topics that are there and none that is gone. Telling everything
comes to an end, whatever changes meanwhile. Versions begin anywhere, so those of
another journal, an earlier one of the same host too, are not taken for its own.
A topic stands in it once, with its last change. Pure; knows nothing of what a
topic holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from foqs.core.items.item import TopicName

_SUPERSEDED_MIN: Final = 1_000
"""So few entries that were superseded are never worth clearing away."""


@dataclass(slots=True, frozen=True)
class Changes:
    """Some of what changed.

    Attributes:
        version: who has heard these, and what was before, has heard everything up to here.
        topics: each once, by the time of its last change, the earliest first.
        whole: they, and those that follow, are all there are.
        whole_since: while everything is told, from the first page to the last, the version when that began.
        more: others follow `version`.
    """

    version: int
    topics: list[TopicName]
    is_full: bool
    full_since: int | None
    has_more: bool


class ChangeLog:
    """Args:
    first_version: a number below 2^62, drawn by lot: the version before any change.
    tombstones_max: topics that are gone and remembered as such; who has not heard of one that is not, hears everything.
    """

    def __init__(self, first_version: int, tombstones_max: int) -> None:
        self._tombstones_max = tombstones_max
        self._first_version = first_version
        self._last_version = first_version
        self._floor_version = first_version
        """Of what was before, some that are gone are not remembered."""
        self._version_of: dict[TopicName, int] = {}
        """The last change of each topic that is there, or gone and remembered."""
        self._tombstones: OrderedDict[TopicName, None] = OrderedDict()
        """The one that went first is first."""
        self._logged_topics: list[TopicName] = []
        self._logged_versions: list[int] = []
        """With `_topics`, every change; superseded where `_at` says another."""

    def __len__(self) -> int:
        """How many topics are there."""
        return len(self._version_of) - len(self._tombstones)

    def __contains__(self, topic: TopicName) -> bool:
        """The topic is there, as was said of it last."""
        return topic in self._version_of and topic not in self._tombstones

    def record(self, topic: TopicName, *, exists: bool) -> None:
        """A topic has come, has changed, or (not `exists`) has gone."""
        if exists:
            self._tombstones.pop(topic, None)
        elif topic in self._tombstones or topic not in self._version_of:
            return  # nobody can have heard of it since it went
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
        """What changed after a version of this journal; everything after any other. At most `topics_max` topics.

        Args:
            full_since: of the changes that ended with `version`, where more followed.
        """
        # A page of everything may end below the floor: what is forgotten from there on went before that began.
        least = self._floor_version if full_since is None else self._first_version
        whole = version is None or not least <= version <= self._last_version
        if whole:
            full_since = self._last_version
        began = -1 if full_since is None else full_since
        found: list[TopicName] = []
        start = 0 if whole or version is None else bisect_right(self._logged_versions, version)
        for place in range(start, len(self._logged_topics)):
            topic, at = self._logged_topics[place], self._logged_versions[place]
            if self._version_of.get(topic) != at or (at <= began and topic in self._tombstones):
                continue
            if len(found) == topics_max:
                return Changes(at - 1, found, whole, full_since, has_more=True)
            found.append(topic)
        # What went since it began, and is forgotten, was not told: its version is below the floor, so all is told again.
        missed = full_since is not None and full_since < self._floor_version
        return Changes(began if missed else self._last_version, found, whole, full_since, has_more=False)

    def _compact(self) -> None:
        kept = [
            (topic, version)
            for topic, version in zip(self._logged_topics, self._logged_versions, strict=True)
            if self._version_of.get(topic) == version
        ]
        self._logged_topics = [topic for topic, _ in kept]
        self._logged_versions = [version for _, version in kept]
