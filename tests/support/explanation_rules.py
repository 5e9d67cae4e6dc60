"""What must be true of what `explain` says of an item (invariant 15: what is shown is what is there).

Always true: as `checker` promises; an answer is of some moment between its
question and itself. An answer that knows neither the item nor that it is gone
says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support import clock_bounds
from tests.support.clock_bounds import ClockBounds
from tests.support.history import Call, CallEnd
from tests.support.item_histories import DESTROYING, ENDING, ItemHistories, ItemHistory

NAMES: Final = ("explained", "explained as leased", "explained as absent")
"""What `counts` counts."""


def count_occurrences(book: ItemHistories) -> dict[str, int]:
    """How often explanations said something, for people."""
    count = dict.fromkeys(NAMES, 0)
    for call in book.calls_of("explain"):
        if call.end is CallEnd.OK:
            count["explained"] += 1
            count["explained as leased"] += call.results[0].get("state") == "leased"
            count["explained as absent"] += call.results[0]["absent"]
    return count


def check_explanation(case: ItemHistory, bounds: ClockBounds) -> Iterator[str]:
    """15: an explanation speaks of the item as it was at that moment."""
    for call in case.explained:
        if call.end is CallEnd.OK and call.args.get("namespace") == case.namespace:
            yield from (f"{call.name} {what}" for what in _contradictions(case, call, bounds))


def _contradictions(case: ItemHistory, call: Call, bounds: ClockBounds) -> Iterator[str]:
    answer, returned = call.results[0], call.returned
    assert returned is not None
    state, told = answer.get("state"), answer["told"]
    if answer["absent"]:
        was_there = any(entry.returned is not None and entry.returned.before(call.invoked) for entry in case.enqueued)
        seen_later = case.row is not None or any(returned.before(each.requested) for each in case.receipts)
        if was_there and seen_later:
            yield "says that there is no such item, and yet it was there"
        return
    if state is None:
        return
    if told is not None and told != state:
        yield f"shows a {state} item, and speaks of it as {told}"
    for entry in case.acknowledged_operations(*DESTROYING):
        if entry.returned is not None and entry.returned.before(call.invoked):
            yield f"shows it {state} after {entry.call.name} had succeeded"
    if state == "leased" and not any(not returned.before(each.invoked) for each in case.dequeues()):
        yield "shows it leased, and nobody had asked for it"
    if state == "ready" and returned.at_ms < clock_bounds.earliest_ready_ms(case, bounds):
        yield "shows it ready before it can have come due"
    held = _attempt_leased_during(case, call, bounds)
    if held is not None and (state, answer["attempt"]) != ("leased", held):
        yield f"shows it {state} with attempt {answer['attempt']}, while attempt {held} was leased"


def _attempt_leased_during(case: ItemHistory, call: Call, bounds: ClockBounds) -> int | None:
    """The attempt whose lease lasted all the time of the call, for certain."""
    assert call.returned is not None
    returned = call.returned
    changed = [entry.invoked for entry in case.possible_operations(*ENDING, *DESTROYING, "redrive")]
    changed += [purge.invoked for purge in case.purges()]
    if any(not returned.before(stamp) for stamp in changed):
        return None
    for each in reversed(case.receipts):
        if each.received.before(call.invoked) and returned.at_ms < clock_bounds.earliest_lease_end_ms(
            case, each, bounds
        ):
            return int(each.result["attempt"])
    return None
