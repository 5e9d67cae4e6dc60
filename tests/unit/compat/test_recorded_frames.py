"""Frames of earlier versions are read by hosts and clients, and written alike."""

from __future__ import annotations

from typing import Any

import pytest
from thrift.Thrift import TMessageType

from foqs.rpc.messages import DecodeLimits, Decoder, bytes_spec, read_head
from foqs.rpc.methods import contract_methods
from foqs_contract.idl import Foqs
from foqs_contract.message_heads import HEAD_BYTES_MIN
from foqs_contract.thrift_method import ThriftMethod
from tests.compat.contracts_check import contract_tool
from tests.compat.frames_check import call_spec, filled, message, recorded, reply_spec

HOST_METHODS = contract_methods({})
DECODER = Decoder(DecodeLimits(1 << 20, 10_000))
RECORDED = recorded()
ROWS = [(version, method) for version, methods in RECORDED.items() for method in methods]


def read_call(frame: bytes) -> tuple[str, Any]:
    """Read a call as a host does. Raises WrongType if the host does not know all of it."""
    head, _ = read_head(frame)
    method = HOST_METHODS[head.name]
    DECODER.decode(frame, head, method.args_spec)
    arguments = DECODER.decode(frame, head, bytes_spec(getattr(Foqs, f"{method.row.name}_args")))
    method.type_check.check(frame, head, arguments)
    return method.row.name, arguments


def test_every_released_version_is_recorded_with_its_methods() -> None:
    contracts = contract_tool.recorded_contracts()
    assert {version: set(methods) for version, methods in RECORDED.items()} == {
        version: set(contract.methods) for version, contract in contracts.items()
    }
    assert {method for _, method in ROWS} <= {name.decode() for name in HOST_METHODS}


@pytest.mark.parametrize(("version", "method"), ROWS)
def test_calls_of_an_earlier_version_are_read_and_written_alike(version: int, method: str) -> None:
    for protocol in ("binary", "compact"):
        frame = bytes.fromhex(RECORDED[version][method][f"{protocol} call"])
        name, arguments = read_call(frame)
        assert name == method
        request = filled(call_spec(method), arguments)
        assert message(protocol, method, TMessageType.CALL, request) == frame


@pytest.mark.parametrize(("version", "method"), ROWS)
def test_replies_of_an_earlier_version_are_read_and_written_alike(version: int, method: str) -> None:
    frame = bytes.fromhex(RECORDED[version][method]["binary reply"])
    result = ThriftMethod(method).decode(frame[HEAD_BYTES_MIN + len(method) :])
    assert result.failed is None
    reply = filled(reply_spec(method), result)
    assert message("binary", method, TMessageType.REPLY, reply) == frame
