"""The suspension of a host: it delivers nothing for now. All other calls are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, frozen=True)
class SuspensionCause:
    """The cause of a suspension: half a sentence for an error, and a sentence with its remedy for the explanation of an item."""

    reason: str
    explanation: str
    remedy: str


WITHOUT_SESSION: Final = SuspensionCause(
    "this host may not deliver without its ZooKeeper session",
    "The coordination service does not answer this host, so it delivers nothing: another host may soon own its shards.",
    "Repair ZooKeeper: then this host continues by itself, or another host takes its shards over.",
)
STARTING: Final = SuspensionCause(
    "this host has just started and does not serve all its shards yet",
    "The host has just started. It delivers when all its shards are served, and without those that take too long.",
    "Ask again in some seconds.",
)


@dataclass(slots=True)
class Suspension:
    """Says why the host is suspended, if it is. The queue sets it, and all parts that deliver read it."""

    cause: SuspensionCause | None = None

    @property
    def is_on(self) -> bool:
        """Whether the host is suspended."""
        return self.cause is not None

    @property
    def explanation(self) -> tuple[str, str] | None:
        """The effect on an item, and the remedy."""
        return None if self.cause is None else (self.cause.explanation, self.cause.remedy)
