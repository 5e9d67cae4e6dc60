"""The actions of pipelines on items: the calls, their repetition, and their outcomes.

Holds `ItemAction`, `call_until_accepted` and `outcome_of`. Always true: every call may be made
twice. Knows neither Spark nor Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from foqs_client.errors import FoqsError
from foqs_client.sync_client import SyncClient
from foqs_client.types import Change

E = TypeVar("E")
Results: TypeAlias = Sequence[Any]
"""Outcomes or Enqueued: objects with an `error`."""

_PAUSE_S_MIN: Final = 0.1


@dataclass(slots=True, frozen=True)
class ItemAction:
    """The action on each item. `argument`: the priority or the topic; of a restore, the name of the export."""

    name: str
    argument: Any = None

    def __str__(self) -> str:
        words = {"priority": f"give priority {self.argument} to", "move": f"move to topic {self.argument!r}"}
        return words.get(self.name, self.name)

    def call(self, client: SyncClient, entries: Sequence[Any]) -> Results:
        """Make one call. Raises FoqsError."""
        match self.name:
            case "redrive":
                return client.redrive(entries)
            case "cancel":
                return client.cancel(entries)
            case "priority":
                return client.update(entries, Change(priority=self.argument))
            case "move":
                return client.move(entries, self.argument)
            case _:
                return client.restore(entries)


def call_until_accepted(
    entries: Sequence[E],
    call: Callable[[Sequence[E]], Results],
    timeout_s: float,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Any]:
    """Call until each entry has a final result, or the time ends. Return the results in order.

    An entry that a host refuses for lack of room or rate is sent again after the pause that the host asks for.

    Raises:
        FoqsError: a whole call failed, and an entry has no result.
    """
    results: dict[int, Any] = {}
    places: Sequence[int] = range(len(entries))
    until_s = clock_s() + timeout_s
    while True:
        errors: list[FoqsError] = []
        again: list[int] = []
        try:
            for place, result in zip(places, call([entries[place] for place in places]), strict=True):
                results[place] = result
                if result.error is not None and result.error.retryable:
                    again.append(place)
                    errors.append(result.error)
        except FoqsError as error:
            again, errors = list(places), [error]
            if not error.retryable:
                raise
        pause_s = max([_PAUSE_S_MIN, *[(error.retry_after_ms or 0) / 1_000 for error in errors]])
        if not again or clock_s() + pause_s > until_s:
            if len(results) < len(entries):
                raise errors[0]
            return [results[place] for place in range(len(entries))]
        sleep(pause_s)
        places = again


def outcome_of(result: Any) -> tuple[str, str]:
    """Return (outcome, message) of a result: `done`, `repeated`, `gone` or the code of its error."""
    if result.error is not None:
        return result.error.code, result.error.message
    if getattr(result, "repeated", False):
        return "repeated", "an earlier call did it, or its key is in use"
    if getattr(result, "already_gone", False):
        return "gone", "it was gone already"
    return "done", ""
