"""The topics of a consumer.

Holds `TopicSelection`. Always true: a name without `*`, `?` and `[` is one topic; any
other name is a pattern. Case matters. The first pattern that matches a topic decides
its weight. Knows nothing of the items of topics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from types import MappingProxyType
from typing import Final

from foqs_client.errors import InvalidArgument

_WILD: Final = re.compile(r"[*?\[]")


class TopicSelection:
    """Topics by name and pattern.

    Args:
        names: topics, and patterns such as `email.*`; `*` is all topics.
        weights: by topic or pattern, above 0; 1 if none matches.
        excluded: topics and patterns to leave out, even if `names` matches them.

    Attributes:
        exact_topics: the topics without a pattern.
        prefixes: every topic that a pattern matches begins with one of them. None of them
            begins with another.

    Raises:
        InvalidArgument: there is no name, or a weight is not above 0.
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: Mapping[str, float] = MappingProxyType({}),
        excluded: Sequence[str] = (),
    ) -> None:
        if isinstance(names, str) or not names or not all(names):
            raise InvalidArgument('name the topics: a list such as ["mail", "sms.*"]; ["*"] is all', field="topics")
        for name, weight in weights.items():
            if not 0 < weight < float("inf"):
                raise InvalidArgument(f"{weight} is not a weight; give a number above 0", field=f"weights[{name!r}]")
        self._excluded_patterns = [_compile_pattern(name) for name in excluded]
        self._patterns = [_compile_pattern(name) for name in names if _WILD.search(name)]
        self._weights = [(_compile_pattern(name), float(weight)) for name, weight in weights.items()]
        named = dict.fromkeys(name for name in names if not _WILD.search(name))
        self.exact_topics: Sequence[str] = tuple(name for name in named if not self._is_excluded(name))
        self._exact = frozenset(self.exact_topics)
        prefixes = sorted({_WILD.split(name, maxsplit=1)[0] for name in names if _WILD.search(name)})
        self.prefixes: Sequence[str] = tuple(
            prefix for prefix in prefixes if not any(prefix != other and prefix.startswith(other) for other in prefixes)
        )

    def covers(self, topic: str) -> bool:
        """Return whether the topic is selected."""
        if topic in self._exact:
            return True
        return any(pattern.match(topic) for pattern in self._patterns) and not self._is_excluded(topic)

    def weight(self, topic: str) -> float:
        """Return how many of its items are dequeued for one item of a topic of weight 1, while both have enough."""
        return next((weight for pattern, weight in self._weights if pattern.match(topic)), 1.0)

    def _is_excluded(self, topic: str) -> bool:
        return any(pattern.match(topic) for pattern in self._excluded_patterns)


def prefix_pattern(prefix: str) -> str:
    """Return the pattern of all topics that begin with `prefix`, with its special characters escaped."""
    return re.sub(r"([*?\[])", r"[\1]", prefix) + "*"


def _compile_pattern(name: str) -> re.Pattern[str]:
    return re.compile(translate(name) if _WILD.search(name) else re.escape(name) + r"\Z")
