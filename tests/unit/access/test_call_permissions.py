"""The requirement of each call: the table covers the contract, and the default is to refuse."""

from __future__ import annotations

import pytest

from foqs.access.call_permissions import REQUIREMENTS, Permission, Principal, Scope
from foqs_contract.errors import ErrorCode
from foqs_contract.idl import Foqs, ttypes

ENQUEUE, CONSUME, ADMIN = Permission.ENQUEUE, Permission.CONSUME, Permission.ADMIN
CALLS = sorted(name for name in vars(Foqs.Iface) if not name.startswith("_"))
SOMEBODY = Principal("somebody")

WHO = {
    ENQUEUE: ["enqueue"],
    CONSUME: ["dequeue", "ack", "nack", "extendLease", "release"],
    ADMIN: [
        "cancel", "update", "extendHeldLeases", "bulk", "redrive", "moveItems", "restoreItems", "getUsage",
        "setGrant", "listGrants", "pauseTopic", "resumeTopic", "purgeTopic", "bindTopic", "startBulkJob", "controlBulkJob",
    ],
}  # fmt: skip
LOOKING = ["getActiveTopics", "peek", "getItem", "explain", "countItems", "listItems", "listDead", "listBulkJobs"]
OTHERS = ["authenticate", "getRouting", "abandonDequeues", "getNamespace"]
CLUSTER = [
    "createNamespace", "updateNamespace", "deleteNamespace", "listNamespaces", "exportConfig", "importConfig",
    "listShards", "addShard", "removeShard", "moveShard", "drainShard", "undrainShard", "listHosts", "drainHost", "undrainHost", "gossip", "rankItem", "listAudit",
]  # fmt: skip


def allowed(call: str, *granted: Permission, principal: Principal = SOMEBODY) -> bool:
    return REQUIREMENTS[call].refusal(principal, granted) is None


def test_table_has_exactly_the_calls_of_the_contract() -> None:
    assert sorted(REQUIREMENTS) == CALLS
    assert sorted([*(call for calls in WHO.values() for call in calls), *LOOKING, *CLUSTER, *OTHERS]) == CALLS


def test_permissions_have_the_numbers_of_the_contract() -> None:
    assert {each.name: int(each) for each in Permission} == {each.name: int(each) for each in ttypes.Permission}


@pytest.mark.parametrize("call", CALLS)
def test_principal_without_grants_may_make_only_calls_that_affect_no_namespace(call: str) -> None:
    assert allowed(call) == (call in ("authenticate", "getRouting", "abandonDequeues"))


@pytest.mark.parametrize("call", CALLS)
def test_administrator_may_make_every_call(call: str) -> None:
    assert allowed(call, principal=Principal("root", is_admin=True))


@pytest.mark.parametrize(("permission", "call"), [(own, call) for own, calls in WHO.items() for call in calls])
def test_each_call_is_allowed_by_its_permission_and_by_no_other(permission: Permission, call: str) -> None:
    assert allowed(call, permission)
    others = [other for other in Permission if other is not permission]
    refusal = REQUIREMENTS[call].refusal(SOMEBODY, others)
    assert refusal is not None
    assert (refusal.number, refusal.field) == (ErrorCode.PERMISSION_DENIED, permission.name)
    assert "somebody" in refusal.message


@pytest.mark.parametrize("call", LOOKING)
def test_reads_are_allowed_to_consumers_and_namespace_administrators(call: str) -> None:
    assert [allowed(call, permission) for permission in Permission] == [False, True, True]


@pytest.mark.parametrize("permission", Permission)
def test_settings_of_a_namespace_are_shown_with_any_grant_on_it(permission: Permission) -> None:
    assert allowed("getNamespace", permission)


@pytest.mark.parametrize("call", CLUSTER)
def test_grants_on_a_namespace_do_not_allow_cluster_calls(call: str) -> None:
    refusal = REQUIREMENTS[call].refusal(SOMEBODY, list(Permission))
    assert refusal is not None
    assert (refusal.number, refusal.field) == (ErrorCode.PERMISSION_DENIED, "admin")


@pytest.mark.parametrize("call", CALLS)
def test_namespace_field_of_a_requirement_exists_in_the_request(call: str) -> None:
    """Each call whose request names a namespace needs a grant on it, except deletions and the calls between hosts."""
    fields = getattr(Foqs, f"{call}_args").thrift_spec[1][3][0].thrift_spec
    names = {field[2] for field in fields if field}
    need = REQUIREMENTS[call]
    if need.scope is Scope.NAMESPACE:
        assert need.namespace_field.split(".")[0] in names
    else:
        assert "namespace_name" not in names or call in ("deleteNamespace", "rankItem")
