"""The checker's rules for grants, deleted namespaces and imports: one violation of each, and near misses without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.access_rules import NOBODY
from tests.support.checker import check
from tests.support.clock_bounds import ClockBounds
from tests.support.history import UNKNOWN, Event, History

BOUNDS = ClockBounds(lease_ms_default=1_000, attempts_max_default=0, backoff_ms_max=100)


class Log:
    """A history whose calls follow one another, a second apart."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._history = History(lambda: self._now_ms)

    def call(
        self, op: str, *, items: Sequence[Event] = (), results: Sequence[Event] = (), failed: str = "", **args: Any
    ) -> None:
        self._now_ms += 1_000
        number = self._history.invoke("p", op, items, **{"namespace": "n", **args})
        self._now_ms += 10
        if failed:
            self._history.fail(number, failed)
        else:
            self._history.ok(number, results)

    def grant(self, *permissions: str, **more: Any) -> None:
        self.call("grant", to="guest", permissions=list(permissions), **more)

    def ask(self, op: str, *, principal: str = "guest", **more: Any) -> None:
        self.call(op, principal=principal, **more)

    def enqueue(self, id: str) -> None:
        items = [{"mark": id, "topic": "t", "priority": 0, "metadata": ""}]
        self.call("enqueue", items=items, results=[{"id": id, "repeated": False}])

    def dequeue(self, id: str) -> None:
        results = [{"id": id, "mark": id, "topic": "t", "priority": 0, "token": 1, "attempt": 1}]
        self.call("dequeue", topics={"t": 5}, results=results)

    def cancel(self, *errors: str, **more: Any) -> None:
        """Cancels an item for each error, which is the item's result."""
        items = [{"id": f"{shard}-1"} for shard, _ in enumerate(errors, 1)]
        self.call("cancel", items=items, results=[{"error": error} for error in errors], **more)

    def healed(self) -> None:
        self._history.healed()

    def judge(self, *rows: Event) -> list[int]:
        """The numbers of the invariants that were broken."""
        self._history.present(rows)
        return [violation.invariant for violation in check(self._history.events, BOUNDS)]


# ----------------------------------------------------------------------- grants


def test_a_principal_without_any_grant_is_refused() -> None:
    log = Log()
    log.ask("peek")
    assert log.judge() == [17]


@pytest.mark.parametrize(("granted", "broken"), [("consume", []), ("admin", []), ("enqueue", [17])])
def test_a_call_needs_a_permission_for_its_operation(granted: str, broken: list[int]) -> None:
    log = Log()
    log.grant(granted)
    log.ask("peek")
    assert log.judge() == broken


def test_a_revoked_grant_admits_no_call() -> None:
    log = Log()
    log.grant("consume")
    log.grant("enqueue")
    log.ask("peek")
    assert log.judge() == [17]


@pytest.mark.parametrize("undone", ["unknown grant", "unknown revocation", "import"])
def test_a_grant_of_unknown_outcome_may_admit_a_call(undone: str) -> None:
    log = Log()
    if undone == "unknown grant":
        log.grant("consume", failed=UNKNOWN)
    elif undone == "unknown revocation":
        log.grant("consume")
        log.grant(failed=UNKNOWN)
    else:
        log.call("import", namespaces="x")
    log.ask("peek")
    assert log.judge() == []


def test_a_grant_is_valid_in_its_namespace_only() -> None:
    log = Log()
    log.grant("consume", namespace="other")
    log.ask("peek")
    assert log.judge() == [17]


def test_no_grant_admits_an_operators_call() -> None:
    log = Log()
    log.grant("admin")
    log.ask("usage")
    log.ask("export", results=[{"namespaces": "x"}])
    assert log.judge() == [17]


def test_an_unauthenticated_client_is_refused() -> None:
    log = Log()
    log.ask("topics", principal=NOBODY)
    log.ask("topics", principal=NOBODY, failed="UNAUTHENTICATED")
    assert log.judge() == [17]


@pytest.mark.parametrize(("error", "broken"), [(UNKNOWN, []), ("UNAVAILABLE", []), ("NOT_FOUND", [17])])
def test_a_call_with_only_refused_and_unknown_items_was_not_admitted(error: str, broken: list[int]) -> None:
    log = Log()
    log.cancel(error, "PERMISSION_DENIED", principal="guest")
    assert log.judge() == broken


def test_denying_one_item_is_a_denial() -> None:
    log = Log()
    log.grant("admin")
    log.cancel(UNKNOWN, "PERMISSION_DENIED", principal="guest")
    assert log.judge() == [19]


@pytest.mark.parametrize(("later", "broken"), [(None, [19]), ("enqueue", [])])
def test_a_call_with_its_grant_is_not_denied(later: str | None, broken: list[int]) -> None:
    log = Log()
    log.grant("consume")
    if later is not None:
        log.grant(later)
    log.ask("peek", failed="PERMISSION_DENIED")
    assert log.judge() == broken


# ------------------------------------------------------- namespaces and imports


def test_a_deleted_namespace_serves_nothing_until_it_is_created_again() -> None:
    log = Log()
    log.call("delete")
    log.enqueue("1-1")
    assert log.judge({"id": "1-1", "mark": "1-1", "topic": "t", "priority": 0, "state": "ready"}) == [19]
    log = Log()
    log.call("delete")
    log.call("create")
    log.enqueue("1-1")
    assert log.judge({"id": "1-1", "mark": "1-1", "topic": "t", "priority": 0, "state": "ready"}) == []


@pytest.mark.parametrize(("error", "broken"), [(UNKNOWN, []), ("UNAVAILABLE", []), ("NOT_FOUND", [19])])
def test_a_deleted_namespace_did_not_answer_a_call_with_only_refused_and_unknown_items(
    error: str, broken: list[int]
) -> None:
    log = Log()
    log.call("delete")
    log.cancel(error, "NAMESPACE_NOT_FOUND")
    assert log.judge() == broken


def test_a_deleted_namespace_answered_a_call_if_one_item_was_done() -> None:
    log = Log()
    log.call("delete")
    items = [{"mark": id, "topic": "t", "priority": 0, "metadata": ""} for id in ("1-1", "2-1")]
    log.call("enqueue", items=items, results=[{"error": UNKNOWN}, {"id": "2-1", "repeated": False}])
    assert log.judge({"id": "2-1", "mark": "2-1", "topic": "t", "priority": 0, "state": "ready"}) == [19]


def test_items_are_deleted_with_their_namespace() -> None:
    log = Log()
    log.enqueue("1-1")
    log.call("delete")
    log.call("create")
    assert log.judge({"id": "1-1", "mark": "1-1", "topic": "t", "priority": 0, "state": "deferred"}) == [19]


def test_items_of_a_deleted_namespace_are_not_delivered() -> None:
    log = Log()
    log.enqueue("1-1")
    log.call("delete")
    log.call("create")
    log.dequeue("1-1")
    log.call("ack", items=[{"id": "1-1", "token": 1}], results=[{}])
    assert log.judge() == [19]


def test_an_export_shows_the_import() -> None:
    for shown, broken in (("x", []), ("y", [19])):
        log = Log()
        log.call("import", namespaces="x")
        log.call("export", results=[{"namespaces": shown}])
        assert log.judge() == broken


def test_a_change_of_unknown_outcome_may_follow_an_import_until_healed() -> None:
    for healed, broken in ((False, []), (True, [19])):
        log = Log()
        log.call("pause", topic="t", failed=UNKNOWN)
        if healed:
            log.healed()
        log.call("import", namespaces="x")
        log.call("export", results=[{"namespaces": "y"}])
        assert log.judge() == broken
