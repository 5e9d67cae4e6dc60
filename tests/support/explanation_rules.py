"""Rules for the replies of `explain` (invariant 15: replies show what is stored).

Always true: as in `checker`. A reply describes some moment between the call and
the reply. A reply that neither shows the item nor says that it is absent is not
judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support import clock_bounds
from tests.support.clock_bounds import ClockBounds
from tests.support.history import Call, CallEnd
from tests.support.item_histories import DESTROYING, ENDING, ItemHistories, ItemHistory

NAMES: Final = ("explained", "explained as leased", "explained as absent")
"""The keys of `count_occurrences`."""


def count_occurrences(histories: ItemHistories) -> dict[str, int]:
    """Count the explanations, for a report."""
    count = dict.fromkeys(NAMES, 0)
    for call in histories.calls_of("explain"):
        if call.end is CallEnd.OK:
            count["explained"] += 1
            count["explained as leased"] += call.results[0].get("state") == "leased"
            count["explained as absent"] += call.results[0]["absent"]
    return count


def check_explanation(item: ItemHistory, bounds: ClockBounds) -> Iterator[str]:
    """15: an explanation describes the item as it was at that moment."""
    for call in item.explained:
        if call.end is CallEnd.OK and call.args.get("namespace") == item.namespace:
            yield from (f"{call.name} {problem}" for problem in _contradictions(item, call, bounds))


def _contradictions(item: ItemHistory, call: Call, bounds: ClockBounds) -> Iterator[str]:
    reply, returned = call.results[0], call.returned
    assert returned is not None
    state, described = reply.get("state"), reply["described"]
    if reply["absent"]:
        existed = any(entry.returned is not None and entry.returned.before(call.invoked) for entry in item.enqueued)
        seen_later = item.row is not None or any(returned.before(each.requested) for each in item.receipts)
        if existed and seen_later:
            yield "says that the item does not exist, but it existed"
        return
    if state is None:
        return
    if described is not None and described != state:
        yield f"shows a {state} item, but describes it as {described}"
    for entry in item.acknowledged_operations(*DESTROYING):
        if entry.returned is not None and entry.returned.before(call.invoked):
            yield f"shows it {state} after {entry.call.name} had succeeded"
    if state == "leased" and not any(not returned.before(each.invoked) for each in item.dequeues()):
        yield "shows it leased, but no dequeue had begun"
    if state == "ready" and returned.at_ms < clock_bounds.earliest_ready_ms(item, bounds):
        yield "shows it ready before its deliver-after time"
    leased = _attempt_leased_during(item, call, bounds)
    if leased is not None and (state, reply["attempt"]) != ("leased", leased):
        yield f"shows it {state} with attempt {reply['attempt']}, but attempt {leased} was leased"


def _attempt_leased_during(item: ItemHistory, call: Call, bounds: ClockBounds) -> int | None:
    """Return the attempt whose lease certainly lasted during the whole call."""
    assert call.returned is not None
    returned = call.returned
    changed = [entry.invoked for entry in item.possible_operations(*ENDING, *DESTROYING, "redrive")]
    changed += [purge.invoked for purge in item.purges()]
    if any(not returned.before(stamp) for stamp in changed):
        return None
    for each in reversed(item.receipts):
        if each.received.before(call.invoked) and returned.at_ms < clock_bounds.earliest_lease_end_ms(
            item, each, bounds, call
        ):
            return int(each.result["attempt"])
    return None
