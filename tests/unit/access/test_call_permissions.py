"""The decision on a call: what its row needs, and the default is to refuse."""

from __future__ import annotations

import pytest

from foqs.access.call_permissions import Principal, denial
from foqs_contract.call_table import CALLS, Permission, Scope
from foqs_contract.errors import ErrorCode

SOMEBODY = Principal("somebody")


def allowed(call: str, *granted: Permission, principal: Principal = SOMEBODY) -> bool:
    return denial(CALLS[call].requirement, principal, granted) is None


@pytest.mark.parametrize("call", CALLS)
def test_principal_without_grants_may_make_only_calls_that_affect_no_namespace(call: str) -> None:
    assert allowed(call) == (call in ("authenticate", "getRouting", "abandonDequeues"))


@pytest.mark.parametrize("call", CALLS)
def test_administrator_may_make_every_call(call: str) -> None:
    assert allowed(call, principal=Principal("root", is_admin=True))


@pytest.mark.parametrize("call", [row.name for row in CALLS.values() if row.requirement.scope is Scope.NAMESPACE])
def test_each_call_on_a_namespace_is_allowed_by_its_permissions_and_by_no_other(call: str) -> None:
    needed = CALLS[call].requirement
    assert all(allowed(call, permission) for permission in needed.any_of)
    others = [other for other in Permission if other not in needed.any_of]
    refusal = denial(needed, SOMEBODY, others)
    assert refusal is not None
    assert (refusal.number, refusal.field) == (ErrorCode.PERMISSION_DENIED, needed.any_of[0].name)
    assert "somebody" in refusal.message


@pytest.mark.parametrize("call", [row.name for row in CALLS.values() if row.requirement.scope is Scope.CLUSTER])
def test_grants_on_a_namespace_do_not_allow_cluster_calls(call: str) -> None:
    refusal = denial(CALLS[call].requirement, SOMEBODY, list(Permission))
    assert refusal is not None
    assert (refusal.number, refusal.field) == (ErrorCode.PERMISSION_DENIED, "admin")
