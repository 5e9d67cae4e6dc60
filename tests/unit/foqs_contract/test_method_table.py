"""The table of methods holds what client and host both rely on."""

from __future__ import annotations

from foqs_contract.idl import Foqs
from foqs_contract.method_table import ARGUMENTS_HEAD, METHODS, SUCCESS_HEAD
from foqs_contract.struct_bytes import field_head
from foqs_contract.thrift_method import ThriftMethod


def test_every_method_of_the_service_has_an_entry() -> None:
    assert set(METHODS) == {name for name in vars(Foqs.Iface) if not name.startswith("_")}


def test_arguments_are_one_request_and_results_succeed_or_fail() -> None:
    for name, described in METHODS.items():
        arguments = [field and (field[0], field[2]) for field in described.arguments.thrift_spec]
        assert arguments == [None, (1, "request")], name
        assert [field[2] for field in described.result.thrift_spec] == ["success", "failed"], name
        assert described.request_spec[0]().timeout_ms is None, name
        assert field_head(described.arguments, "request") == ARGUMENTS_HEAD, name
        assert field_head(described.result, "success") == SUCCESS_HEAD, name


def test_caller_can_say_that_its_calls_only_read() -> None:
    assert ThriftMethod("bulk").is_write
    assert not ThriftMethod("peek").is_write
    assert not ThriftMethod("bulk", is_write=False).is_write
