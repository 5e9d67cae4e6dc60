"""Rules for grants, and for namespaces that are created and deleted (invariants 17 and 19).

Holds its own table of the permissions that each operation needs. Always true: as
in `checker`. Only calls that name a `principal` are judged by grants; a principal
begins without grants. An import may grant, revoke, create and delete anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.certain_changes import SPREAD_MS, certainly_held
from tests.support.history import UNKNOWN, Call, CallEnd, entries
from tests.support.item_histories import PAGES, ItemHistories, ItemHistory

NOBODY: Final = "nobody"
"""The principal of a client that has no token, or a wrong one."""

_LOOK: Final = frozenset(("consume", "admin"))
_ADMIN: Final = frozenset(("admin",))
_CONSUME: Final = frozenset(("consume",))
_OPERATOR: Final[frozenset[str]] = frozenset()
"""No grant is enough."""
NEEDS: Final = {
    "enqueue": frozenset(("enqueue",)),
    **dict.fromkeys(("dequeue", "ack", "nack", "extend", "release"), _CONSUME),
    **dict.fromkeys(("topics", "peek", "item", "explain", "count", "dead"), _LOOK),
    **dict.fromkeys(("cancel", "update", "redrive", *PAGES), _ADMIN),
    "settings": frozenset(("enqueue", "consume", "admin")),
    **dict.fromkeys(("usage", "grant", "grants", "pause", "resume", "purge"), _ADMIN),
    **dict.fromkeys(("create", "limit", "delete", "namespaces", "export", "import"), _OPERATOR),
}
"""The permissions for each operation; one of them is enough."""
NAMES: Final = ("let in", "denied", "unauthenticated", "namespaces deleted", "namespaces kept", "imports")
"""The keys of `count_occurrences`."""

_REFUSALS: Final = frozenset(
    (
        UNKNOWN,
        "NAMESPACE_NOT_FOUND",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "OVERLOADED",
        "UNAVAILABLE",
        "NOT_OWNER",
        "DEADLINE_EXCEEDED",
    )
)
"""Errors of an item that do not show that a host looked into the namespace."""
_CREATES: Final = ("create", "import")
_CHANGES: Final = ("limit", "pause", "resume", "grant", "create", "delete", "import")
"""Calls that change the catalog document."""

Finding = tuple[list[str], str]


def count_occurrences(histories: ItemHistories) -> dict[str, int]:
    """Count the calls that the rules judge, for a report."""
    count = dict.fromkeys(NAMES, 0)
    for call in histories.record.calls:
        if "principal" in call.args:
            count["let in"] += _is_answered(call)
            count["denied"] += _is_denied(call)
            count["unauthenticated"] += call.code == "UNAUTHENTICATED"
        elif call.op == "delete":
            count["namespaces deleted"] += call.end is CallEnd.OK
            count["namespaces kept"] += call.code == "INVALID_ARGUMENT"
        count["imports"] += call.op == "import" and call.end is CallEnd.OK
    return count


def check_refusals(histories: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """17: a call without its grant is never answered."""
    for call in histories.record.calls:
        principal = call.args.get("principal")
        if principal is None or not _is_answered(call):
            continue
        if principal == NOBODY:
            yield _ids(call), f"{call.name} of an unauthenticated client was answered"
        elif all(_certainly(histories, call, permission, spread_ms, granted=False) for permission in NEEDS[call.op]):
            needed = " or ".join(sorted(NEEDS[call.op])) or "an administrator"
            yield _ids(call), f"{call.name} of {principal} was answered, but needs {needed}"


def check_grants(histories: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """19: a call with its grant is not denied."""
    for call in histories.record.calls:
        principal = call.args.get("principal")
        if principal is None or principal == NOBODY or not _is_denied(call):
            continue
        for permission in NEEDS[call.op]:
            if _certainly(histories, call, permission, spread_ms, granted=True):
                yield [], f"{call.name} of {principal} was denied, but {principal} had the permission {permission}"


def _certainly(histories: ItemHistories, call: Call, permission: str, spread_ms: float, *, granted: bool) -> bool:
    """Whether its principal certainly had the permission during the call; with `granted=False`, certainly did not."""
    assert call.returned is not None
    principal = (call.args["namespace"], call.args["principal"])
    matching: list[Call] = []
    others = [other for other in histories.calls_of("import") if other.end is not CallEnd.FAILED]
    for each in histories.calls_of("grant"):
        if (each.args["namespace"], each.args["to"]) == principal:
            (matching if (permission in each.args["permissions"]) is granted else others).append(each)
    if not granted and not any(not call.returned.before(other.invoked) for other in others if other.may_have_effect):
        return True
    healed = histories.record.healed
    return any(certainly_held(each, others, call.invoked, call.returned, healed, spread_ms) for each in matching)


# ----------------------------------------------------------------- namespaces


def check_deletions(histories: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """19: a deleted namespace answers no call until it is created again."""
    for deletion in histories.calls_of("delete"):
        namespace = deletion.args["namespace"]
        creations = [
            each
            for op in _CREATES
            for each in histories.calls_of(op)
            if op == "import" or each.args["namespace"] == namespace
        ]
        for call in histories.record.calls:
            if call.op in _CHANGES or not _is_answered(call) or call.args["namespace"] != namespace:
                continue
            assert call.returned is not None
            is_for_all_namespaces = call.op in ("namespaces", "export")
            if is_for_all_namespaces:
                continue
            if certainly_held(deletion, creations, call.invoked, call.returned, histories.record.healed, spread_ms):
                yield (
                    _ids(call),
                    f"{call.name} in namespace {namespace} was answered, but {deletion.name} had deleted the namespace",
                )


def check_deleted_with_namespace(item: ItemHistory) -> Iterator[str]:
    """19: an item that existed when its namespace was deleted is neither delivered afterwards nor kept."""
    known = [entry.returned for entry in item.enqueued] + [each.received for each in item.receipts]
    for call in item.histories.calls_of("delete"):
        if call.end is not CallEnd.OK or call.returned is None or call.args["namespace"] != item.namespace:
            continue
        if not any(stamp is not None and stamp.before(call.invoked) for stamp in known):
            continue
        if item.row is not None:
            yield f"it is in the tables after {call.name} had succeeded"
        for each in item.receipts:
            if call.returned.before(each.requested):
                yield f"{each} was requested after {call.name} had succeeded"


def check_imports(histories: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """19: an export shows what was imported until a change."""
    changes = [call for op in _CHANGES for call in histories.calls_of(op)]
    for call in histories.calls_of("import"):
        for export in histories.calls_of("export"):
            if export.end is not CallEnd.OK or export.returned is None:
                continue
            differs = export.results[0]["namespaces"] != call.args["namespaces"]
            if differs and certainly_held(
                call, changes, export.invoked, export.returned, histories.record.healed, spread_ms
            ):
                yield [], f"{export.name} differs from the import {call.name}"


def _is_answered(call: Call) -> bool:
    """Whether a host did a part of the call, or looked into the namespace for it.

    A client sends the items of one call to several hosts. If one host refuses and another does not reply,
    the call ends well and each of its items has an error: no host answered it.
    """
    if call.end is not CallEnd.OK or not call.items:
        return call.end is CallEnd.OK
    return any(result.get("error") not in _REFUSALS for result in call.results)


def _is_denied(call: Call) -> bool:
    """Whether a host denied the call, or the part of it that was sent there."""
    return "PERMISSION_DENIED" in (call.code, *(entry.code for entry in entries(call)))


def _ids(call: Call) -> list[str]:
    """Return the items that the call names."""
    return [str(each["id"]) for each in (*call.items, *call.results) if "id" in each]
