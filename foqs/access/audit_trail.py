"""The changes that administrators made at this host, and the refused ones: who, what, when, and how it ended.

Always true: at most `ENTRIES_MAX` entries are kept in memory, and nobody's entries displace
those of others who have fewer; each change is one line of the log; no payload, metadata or
token is in it. Knows nothing of calls.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count
from typing import Final, TypeAlias, TypeVar

ENTRIES_MAX: Final = 1_000
VALUE_CHARS_MAX: Final = 260
"""The longest value of an entry. Names have at most 255 bytes, so no name is cut."""
TARGET_CHARS_MAX: Final = 4_000
REFUSED_LINES_PER_SECOND_MAX: Final = 10
"""The maximum number of log lines about refused calls of one principal in a second; it may send such calls without end."""
_DONE: Final = frozenset(("OK", "UNKNOWN_OUTCOME"))
_CHARS_MAX: Final = {
    "principal": VALUE_CHARS_MAX,
    "peer": VALUE_CHARS_MAX,
    "namespace": VALUE_CHARS_MAX,
    "target": TARGET_CHARS_MAX,
}
_PLAIN_VALUE: Final = re.compile(r"[^\s=,\"]+")

log = logging.getLogger("foqs.audit")

_T = TypeVar("_T")


@dataclass(slots=True, frozen=True)
class AuditRecord:
    """One change, or one that was refused. Its texts are cut: a peer whose call is denied may have sent any.

    Attributes:
        at_ms: the moment of its end, in milliseconds since 1970-01-01 UTC by this host's clock.
        principal: None if the host does not authenticate.
        peer: the address that the call came from; `console` or `sqs` before it names the server, if it is not the Thrift server.
        call: the call of the contract, or `sqs.` and an action.
        namespace: None if the call concerns the whole cluster.
        target: the item, topic or other object of the change, as the host understood it, for people.
        outcome: OK, or the code of the error.
    """

    at_ms: int
    principal: str | None
    peer: str
    call: str
    namespace: str | None
    target: str
    outcome: str

    def __post_init__(self) -> None:
        for name, chars_max in _CHARS_MAX.items():
            text: str | None = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, _shorten(text, chars_max))


Share: TypeAlias = tuple[str | None, bool]
"""The entries that displace each other: a principal, and whether they are refused calls."""


def share_of(principal: str | None, outcome: str) -> Share:
    """Return the share of an entry. Refused calls of a principal have a share of their own, so that they cannot displace its changes."""
    return principal, outcome not in _DONE


class AuditTrail:
    """The last entries of the audit at this host."""

    def __init__(self) -> None:
        self._shares: dict[Share, deque[tuple[int, AuditRecord]]] = {}
        """The entries by share, each with its place among all, the oldest first."""
        self._places = count()
        self._entry_count = 0
        self._refused_lines: Counter[tuple[str | None, int]] = Counter()
        """The lines about refused calls of a principal in the present second."""

    def record(self, entry: AuditRecord) -> None:
        """Keep an entry, and write it to the log."""
        share = share_of(entry.principal, entry.outcome)
        self._shares.setdefault(share, deque()).append((next(self._places), entry))
        self._entry_count += 1
        if self._entry_count > ENTRIES_MAX:
            self._drop_one()
        if not share[1] or self._may_log_refused(entry):
            log.info(
                "%s: %s",
                entry.call,
                entry.outcome,
                extra={
                    "principal": entry.principal or "-",
                    "peer": entry.peer,
                    "namespace": entry.namespace or "-",
                    "target": entry.target,
                },
            )

    def newest(self) -> Iterator[AuditRecord]:
        """Yield the entries, the newest first."""
        shares = (reversed(entries) for entries in self._shares.values())
        return (entry for _, entry in merge(*shares, key=lambda found: -found[0]))

    def _drop_one(self) -> None:
        """Drop the oldest entry of the largest share."""
        share = max(self._shares, key=lambda share: len(self._shares[share]))
        self._shares[share].popleft()
        self._entry_count -= 1

    def _may_log_refused(self, entry: AuditRecord) -> bool:
        lines, key = self._refused_lines, (entry.principal, entry.at_ms // 1_000)
        if key not in lines:
            for former in [former for former in lines if former[1] != key[1]]:
                del lines[former]
        lines[key] += 1
        return lines[key] <= REFUSED_LINES_PER_SECOND_MAX


def choose_newest(entries: Sequence[_T], limit: int, share: Callable[[_T], Hashable]) -> list[_T]:
    """Return at most `limit` entries of a list, in its order.

    If there are more, each share has an equal part, its first entries. So nobody pushes others off a page.
    """
    ranks: Counter[Hashable] = Counter()
    ranked: list[tuple[int, int]] = []
    for place, entry in enumerate(entries):
        ranked.append((ranks[share(entry)], place))
        ranks[share(entry)] += 1
    return [entries[place] for place in sorted(place for _, place in sorted(ranked)[:limit])]


def target_value(text: str) -> str:
    """Return a value as a target shows it: nothing in it looks like another part of the target."""
    shown = _shorten(text, VALUE_CHARS_MAX)
    return shown if _PLAIN_VALUE.fullmatch(shown) and shown.isprintable() else json.dumps(shown)


def _shorten(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."
