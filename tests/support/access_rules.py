"""What must be true of who gets in, and of namespaces that come and go (invariants 17 and 19).

Holds its own table of what each operation of a history needs. Always true: as
`checker` promises; only calls that name a `principal` are judged by grants, and
whoever has one begins without any grant. An import may grant, revoke, make and
delete anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.certain_changes import SPREAD_MS, certainly_held
from tests.support.history import UNKNOWN, Call, CallEnd, entries
from tests.support.item_histories import PAGES, ItemHistories, ItemHistory

NOBODY: Final = "nobody"
"""The principal of who has shown no token, or a wrong one."""

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
    **dict.fromkeys(("settings", "usage", "grant", "grants", "pause", "resume", "purge"), _ADMIN),
    **dict.fromkeys(("create", "limit", "delete", "namespaces", "export", "import"), _OPERATOR),
}
"""By operation, the permissions of which one is enough."""
NAMES: Final = ("let in", "denied", "unauthenticated", "namespaces deleted", "namespaces kept", "imports")
"""What `counts` counts."""

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
_MAKES: Final = ("create", "import")
_CHANGES: Final = ("limit", "pause", "resume", "grant", "create", "delete", "import")
"""What changes the document."""

Finding = tuple[list[str], str]


def count_occurrences(book: ItemHistories) -> dict[str, int]:
    """How often it mattered, for people."""
    count = dict.fromkeys(NAMES, 0)
    for call in book.record.calls:
        if "principal" in call.args:
            count["let in"] += _is_answered(call)
            count["denied"] += _is_denied(call)
            count["unauthenticated"] += call.code == "UNAUTHENTICATED"
        elif call.op == "delete":
            count["namespaces deleted"] += call.end is CallEnd.OK
            count["namespaces kept"] += call.code == "INVALID_ARGUMENT"
        count["imports"] += call.op == "import" and call.end is CallEnd.OK
    return count


def check_refusals(book: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """17: no call without its grant is answered, whoever makes it."""
    for call in book.record.calls:
        principal = call.args.get("principal")
        if principal is None or not _is_answered(call):
            continue
        if principal == NOBODY:
            yield _ids(call), f"{call.name} of somebody unknown was answered"
        elif all(_certainly(book, call, permission, spread_ms, granted=False) for permission in NEEDS[call.op]):
            needed = " or ".join(sorted(NEEDS[call.op])) or "an administrator"
            yield _ids(call), f"{call.name} of {principal}, which needs {needed}, was answered"


def check_grants(book: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """19: who was granted something is not denied it."""
    for call in book.record.calls:
        principal = call.args.get("principal")
        if principal is None or principal == NOBODY or not _is_denied(call):
            continue
        for permission in NEEDS[call.op]:
            if _certainly(book, call, permission, spread_ms, granted=True):
                yield [], f"{call.name} of {principal} was denied, although it was granted {permission}"


def _certainly(book: ItemHistories, call: Call, permission: str, spread_ms: float, *, granted: bool) -> bool:
    """While the call was made, its principal certainly had the permission, or certainly did not."""
    assert call.returned is not None
    where = (call.args["namespace"], call.args["principal"])
    alike: list[Call] = []
    others = [other for other in book.calls_of("import") if other.end is not CallEnd.FAILED]
    for each in book.calls_of("grant"):
        if (each.args["namespace"], each.args["to"]) == where:
            (alike if (permission in each.args["permissions"]) is granted else others).append(each)
    if not granted and not any(not call.returned.before(other.invoked) for other in others if other.may_have_effect):
        return True
    healed = book.record.healed
    return any(certainly_held(each, others, call.invoked, call.returned, healed, spread_ms) for each in alike)


# ----------------------------------------------------------------- namespaces


def check_deletions(book: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """19: a namespace that was deleted serves nothing until somebody asks to have it made again."""
    for deletion in book.calls_of("delete"):
        namespace = deletion.args["namespace"]
        makes = [
            each for op in _MAKES for each in book.calls_of(op) if op == "import" or each.args["namespace"] == namespace
        ]
        for call in book.record.calls:
            if call.op in _CHANGES or not _is_answered(call) or call.args["namespace"] != namespace:
                continue
            assert call.returned is not None
            asked_of_all = call.op in ("namespaces", "export")
            if asked_of_all:
                continue
            if certainly_held(deletion, makes, call.invoked, call.returned, book.record.healed, spread_ms):
                yield (
                    _ids(call),
                    f"{call.name} in namespace {namespace} was answered, which {deletion.name} had deleted",
                )


def went_with_its_namespace(case: ItemHistory) -> Iterator[str]:
    """19: what was there before a namespace's deletion was asked for is neither delivered afterwards nor kept."""
    known = [entry.returned for entry in case.enqueued] + [each.received for each in case.receipts]
    for call in case.histories.calls_of("delete"):
        if call.end is not CallEnd.OK or call.returned is None or call.args["namespace"] != case.namespace:
            continue
        if not any(stamp is not None and stamp.before(call.invoked) for stamp in known):
            continue
        if case.row is not None:
            yield f"it is in the tables after {call.name} had succeeded"
        for each in case.receipts:
            if call.returned.before(each.requested):
                yield f"{each} was asked for after {call.name} had succeeded"


def check_imports(book: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[Finding]:
    """19: what was imported is what is exported, until somebody asks for a change."""
    changes = [call for op in _CHANGES for call in book.calls_of(op)]
    for call in book.calls_of("import"):
        for export in book.calls_of("export"):
            if export.end is not CallEnd.OK or export.returned is None:
                continue
            differs = export.results[0]["namespaces"] != call.args["namespaces"]
            if differs and certainly_held(
                call, changes, export.invoked, export.returned, book.record.healed, spread_ms
            ):
                yield [], f"{export.name} differs from what {call.name} had imported"


def _is_answered(call: Call) -> bool:
    """A host did something of the call, or looked into the namespace for it.

    A client sends the items of one call to several hosts. If one host refuses and another does not reply,
    the call ends well and each of its items has an error: no host answered it.
    """
    if call.end is not CallEnd.OK or not call.items:
        return call.end is CallEnd.OK
    return any(result.get("error") not in _REFUSALS for result in call.results)


def _is_denied(call: Call) -> bool:
    """A host denied the call, or the part of it that was sent there."""
    return "PERMISSION_DENIED" in (call.code, *(entry.code for entry in entries(call)))


def _ids(call: Call) -> list[str]:
    """The items that it names."""
    return [str(each["id"]) for each in (*call.items, *call.results) if "id" in each]
