"""Tests of the versions of the contract: the tables are complete, and the newest part of a request is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from thrift.Thrift import TType

from foqs_client import Item
from foqs_contract.call_table import CALLS, FIRST_VERSION
from foqs_contract.contract_version import (
    ADDED_FIELDS,
    CONTRACT_VERSION,
    NewerPart,
    NewerParts,
    too_old,
)
from foqs_contract.idl import ttypes
from foqs_contract.method_table import METHODS
from tests.compat.contracts_check import CONTRACT, contract_tool


def structs_of(spec: Any, depth: int = 0) -> dict[str, int]:
    """Return the names of the structs in a request, with their greatest depth."""
    found = {spec[0].__name__: depth}
    for field in filter(None, spec[1]):
        args = field[3][1] if field[1] == TType.LIST and field[3][0] == TType.STRUCT else field[3]
        if field[1] == TType.STRUCT or (field[1] == TType.LIST and field[3][0] == TType.STRUCT):
            for name, at in structs_of(args, depth + 1).items():
                found[name] = max(at, found.get(name, 0))
    return found


REQUEST_STRUCTS: dict[str, int] = {}
for method in METHODS.values():
    for struct, at in structs_of(method.request_spec).items():
        REQUEST_STRUCTS[struct] = max(at, REQUEST_STRUCTS.get(struct, 0))


RECORDED: dict[int, Any] = contract_tool.recorded_contracts()
"""The contracts of released versions."""


def test_the_present_version_is_the_last_released_one_or_the_next() -> None:
    assert list(RECORDED) == list(range(FIRST_VERSION, max(RECORDED) + 1))
    assert CONTRACT_VERSION - max(RECORDED) in (0, 1)
    versions = {version for names in ADDED_FIELDS.values() for version in names.values()}
    versions |= {row.since for row in CALLS.values() if row.since > FIRST_VERSION}
    assert versions <= set(range(FIRST_VERSION + 1, CONTRACT_VERSION + 1))


@pytest.mark.parametrize("version", RECORDED)
def test_the_tables_name_every_request_field_and_method_that_a_released_version_lacks(version: int) -> None:
    before = RECORDED[version]
    fields, methods = contract_tool.additions(before, contract_tool.parse_contract(CONTRACT))
    assert {row.name for row in CALLS.values() if row.since > version} == methods
    listed = {
        struct.__name__: {name for name, since in names.items() if since > version}
        for struct, names in ADDED_FIELDS.items()
        if struct.__name__ in before.structs
    }
    added = {struct: names for struct, names in fields.items() if struct in REQUEST_STRUCTS}
    assert {struct: names for struct, names in listed.items() if names} == added


def test_structs_that_got_fields_are_where_they_are_looked_for() -> None:
    assert all(REQUEST_STRUCTS[struct.__name__] <= 1 for struct in ADDED_FIELDS)


def test_the_newest_field_of_a_request_is_named_by_its_path() -> None:
    parts = NewerParts(CALLS["enqueue"], METHODS["enqueue"].request_spec)
    items: list[Any] = [Item("t"), Item("t", trace_context=b"x"), ttypes.NewItem("t", group="g")]
    keyed: Any = Item("t", idempotency_key="k")
    assert parts.newest(ttypes.EnqueueRequest("n", [items[0], keyed])) is None
    assert parts.newest(ttypes.EnqueueRequest("n", None)) is None
    newer = ttypes.EnqueueRequest("n", items)
    assert parts.newest(newer) == NewerPart(2, "items[1].trace_context")
    errors = parts.unserved_entries(newer, FIRST_VERSION)
    assert {place: error.field for place, error in errors.items()} == {
        1: "items[1].trace_context",
        2: "items[2].group",
    }
    assert parts.unserved_entries(newer, CONTRACT_VERSION) == {}


def test_entries_are_not_refused_for_the_method() -> None:
    parts = NewerParts(replace(CALLS["enqueue"], since=3), METHODS["enqueue"].request_spec)
    request = ttypes.EnqueueRequest("n", [ttypes.NewItem("t")])
    assert parts.newest(request) == NewerPart(3, None)
    assert parts.unserved_entries(request, 2) == {}


def test_requests_without_new_fields_are_known_to_every_version() -> None:
    assert (
        NewerParts(CALLS["ack"], METHODS["ack"].request_spec).newest(ttypes.AckRequest("n", [ttypes.Lease("0-1", 2)]))
        is None
    )


def test_refusal_says_what_is_too_new_and_what_to_do() -> None:
    field = too_old(1, "the host", "enqueue", NewerPart(2, "items[0].group"))
    assert str(field) == (
        "NOT_IMPLEMENTED (items[0].group): the host serves version 1 of the contract, and this field is of version 2; "
        "upgrade the hosts first, or leave it out"
    )
    call = too_old(1, "the host", "touch", NewerPart(2, None))
    assert (
        call.message
        == "the host serves version 1 of the contract, and the call touch is of version 2; upgrade the hosts first"
    )
    assert call.served_version == 1
