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

from foqs.core.item import TopicName

_STALE_MIN: Final = 1_000
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
    whole: bool
    whole_since: int | None
    more: bool


class Journal:
    """Args:
    first: a number below 2^62, drawn by lot: the version before any change.
    gone_max: topics that are gone and remembered as such; who has not heard of one that is not, hears everything.
    """

    def __init__(self, first: int, gone_max: int) -> None:
        self._gone_max = gone_max
        self._first = first
        self._last = first
        self._floor = first
        """Of what was before, some that are gone are not remembered."""
        self._at: dict[TopicName, int] = {}
        """The last change of each topic that is there, or gone and remembered."""
        self._gone: OrderedDict[TopicName, None] = OrderedDict()
        """The one that went first is first."""
        self._topics: list[TopicName] = []
        self._versions: list[int] = []
        """With `_topics`, every change; superseded where `_at` says another."""

    def __len__(self) -> int:
        """How many topics are there."""
        return len(self._at) - len(self._gone)

    def __contains__(self, topic: TopicName) -> bool:
        """The topic is there, as was said of it last."""
        return topic in self._at and topic not in self._gone

    def changed(self, topic: TopicName, *, there: bool) -> None:
        """A topic has come, has changed, or (not `there`) has gone."""
        if there:
            self._gone.pop(topic, None)
        elif topic in self._gone or topic not in self._at:
            return  # nobody can have heard of it since it went
        else:
            self._gone[topic] = None
        self._last += 1
        self._at[topic] = self._last
        self._topics.append(topic)
        self._versions.append(self._last)
        while len(self._gone) > self._gone_max:
            forgotten, _ = self._gone.popitem(last=False)
            self._floor = max(self._floor, self._at.pop(forgotten))
        if len(self._topics) > 2 * len(self._at) + _STALE_MIN:
            self._compact()

    def since(self, version: int | None, whole_since: int | None, topics_max: int) -> Changes:
        """What changed after a version of this journal; everything after any other. At most `topics_max` topics.

        Args:
            whole_since: of the changes that ended with `version`, where more followed.
        """
        # A page of everything may end below the floor: what is forgotten from there on went before that began.
        least = self._floor if whole_since is None else self._first
        whole = version is None or not least <= version <= self._last
        if whole:
            whole_since = self._last
        began = -1 if whole_since is None else whole_since
        found: list[TopicName] = []
        start = 0 if whole or version is None else bisect_right(self._versions, version)
        for place in range(start, len(self._topics)):
            topic, at = self._topics[place], self._versions[place]
            if self._at.get(topic) != at or (at <= began and topic in self._gone):
                continue
            if len(found) == topics_max:
                return Changes(at - 1, found, whole, whole_since, more=True)
            found.append(topic)
        # What went since it began, and is forgotten, was not told: its version is below the floor, so all is told again.
        missed = whole_since is not None and whole_since < self._floor
        return Changes(began if missed else self._last, found, whole, whole_since, more=False)

    def _compact(self) -> None:
        kept = [
            (topic, version)
            for topic, version in zip(self._topics, self._versions, strict=True)
            if self._at.get(topic) == version
        ]
        self._topics = [topic for topic, _ in kept]
        self._versions = [version for _, version in kept]
