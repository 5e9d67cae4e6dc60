"""The decision on a call: what its row needs, and the default is to refuse."""

from __future__ import annotations

from foqs.access.call_permissions import Principal, denial
from foqs_contract.call_table import CALLS, Permission, Scope
from foqs_contract.errors import ErrorCode

SOMEBODY = Principal("somebody")


def allowed(call: str, *granted: Permission, principal: Principal = SOMEBODY) -> bool:
    return denial(CALLS[call].requirement, principal, granted) is None


def test_principal_without_grants_may_make_only_calls_that_affect_no_namespace() -> None:
    assert {call for call in CALLS if allowed(call)} == {"authenticate", "getRouting", "abandonDequeues"}


def test_administrator_may_make_every_call() -> None:
    assert {call for call in CALLS if allowed(call, principal=Principal("root", is_admin=True))} == set(CALLS)


def test_each_call_on_a_namespace_is_allowed_by_its_permissions_and_by_no_other() -> None:
    for call, row in CALLS.items():
        needed = row.requirement
        if needed.scope is Scope.NAMESPACE:
            assert all(allowed(call, permission) for permission in needed.any_of), call
            enough = needed.any_of or needed.all_of
            refusal = denial(needed, SOMEBODY, [other for other in Permission if other not in enough])
            assert refusal is not None, call
            assert (refusal.number, refusal.field) == (ErrorCode.PERMISSION_DENIED, enough[0].name), call
            assert "somebody" in refusal.message


def test_completion_needs_both_permissions_and_the_missing_one_is_named() -> None:
    needed = CALLS["complete"].requirement
    assert denial(needed, SOMEBODY, [Permission.CONSUME, Permission.ENQUEUE]) is None
    for granted, missing in ((Permission.CONSUME, "ENQUEUE"), (Permission.ENQUEUE, "CONSUME")):
        refusal = denial(needed, SOMEBODY, [granted])
        assert refusal is not None
        assert refusal.field == missing
        assert "CONSUME and ENQUEUE" in refusal.message


def test_grants_on_a_namespace_do_not_allow_cluster_calls() -> None:
    for call, row in CALLS.items():
        if row.requirement.scope is Scope.CLUSTER:
            refusal = denial(row.requirement, SOMEBODY, list(Permission))
            assert refusal is not None, call
            assert (refusal.number, refusal.field) == (ErrorCode.PERMISSION_DENIED, "admin"), call
