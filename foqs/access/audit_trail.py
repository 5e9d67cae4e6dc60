"""The changes that administrators made at this host: who, what, when, and how it ended.

Always true: the last `ENTRIES_MAX` are kept in memory, and each is one line of the log;
no payload, metadata or token is in it. Knows nothing of calls.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

ENTRIES_MAX: Final = 1_000
TARGET_CHARS_MAX: Final = 300

log = logging.getLogger("foqs.audit")


@dataclass(slots=True, frozen=True)
class AuditEntry:
    """One change.

    Attributes:
        at_ms: when it ended, in milliseconds since 1970-01-01 UTC by this host's clock.
        principal: None if the host does not authenticate.
        peer: where the call came from: an address, `console` or `sqs`.
        call: the call of the contract, or `sqs.` and an action.
        namespace: None if the call concerns the whole cluster.
        target: what it concerned, for people.
        outcome: OK, or the code of the error.
    """

    at_ms: int
    principal: str | None
    peer: str
    call: str
    namespace: str | None
    target: str
    outcome: str


class AuditTrail:
    """The last changes at this host."""

    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=ENTRIES_MAX)

    def record(self, entry: AuditEntry) -> None:
        """Keep an entry, and write it to the log."""
        self._entries.append(entry)
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

    def newest(self) -> Iterator[AuditEntry]:
        """Yield the entries, the newest first."""
        return reversed(self._entries)


def shorten_target(text: str) -> str:
    """Return a description of a change's target as an entry keeps it."""
    return text if len(text) <= TARGET_CHARS_MAX else f"{text[: TARGET_CHARS_MAX - 3]}..."
