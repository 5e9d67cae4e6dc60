"""The rows of the calls agree with the contract, and none is forgotten."""

from __future__ import annotations

import pytest
from thrift.Thrift import TType

from foqs_contract.call_table import CALLS, Permission, Route, Scope
from foqs_contract.idl import ttypes
from foqs_contract.method_table import METHODS, described_methods


def test_permissions_have_the_numbers_of_the_contract() -> None:
    assert {each.name: int(each) for each in Permission} == {each.name: int(each) for each in ttypes.Permission}


def test_call_without_a_row_and_row_without_a_call_do_not_start() -> None:
    with pytest.raises(ValueError, match="the call peek has no row in foqs_contract/call_table"):
        described_methods(["peek"], {})
    with pytest.raises(ValueError, match="the row peek in foqs_contract/call_table"):
        described_methods([], {"peek": CALLS["peek"]})


def test_rows_agree_with_the_structs_of_their_calls() -> None:
    """A call that other hosts take part in has the field `forwarded`; one that names a namespace needs a grant on it."""
    for row in CALLS.values():
        fields = {field[2]: field for field in filter(None, METHODS[row.name].request_spec[1])}
        need = row.requirement
        if need.scope is Scope.NAMESPACE:
            assert need.namespace_field.split(".")[0] in fields, row
        else:
            assert "namespace_name" not in fields or row.name in ("deleteNamespace", "rankItem"), row
        assert bool(need.any_of or need.all_of) == (need.scope is Scope.NAMESPACE), row
        assert not (need.any_of and need.all_of), row
        assert row.waits == ("wait_ms" in fields), row
        assert bool(row.entries) == (row.route is Route.BY_ID), row
        if row.entries:
            assert fields[row.entries][1] == TType.LIST, row
            assert "outcomes" in {field[2] for field in filter(None, METHODS[row.name].reply_class.thrift_spec)}, row
        if row.route in (Route.BY_ID, Route.BY_SHARD, Route.ALL_SHARDS, Route.ALL_HOSTS, Route.PLACED, Route.BEST):
            assert "forwarded" in fields, row
        if row.route is Route.ALL_SHARDS:
            assert "shards" in fields, row
