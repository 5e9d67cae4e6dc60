"""Frames and heads of messages are those that Thrift writes."""

from __future__ import annotations

import pytest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TTransport import TFramedTransport, TMemoryBuffer

from foqs_contract.idl import Foqs, ttypes
from foqs_contract.message_heads import CALL, EXCEPTION, REPLY, SEQID, frame_message, head_prefix
from foqs_contract.thrift_method import ThriftMethod


def thrift_frame(kind: int, name: str, seqid: int, struct: bytes) -> bytes:
    """Return the frame that Thrift writes around a struct."""
    buffer = TMemoryBuffer()
    framed = TFramedTransport(buffer)
    protocol = TBinaryProtocol(framed)
    protocol.writeMessageBegin(name, kind, seqid)
    framed.write(struct)
    framed.flush()
    frame: bytes = buffer.getvalue()
    return frame


@pytest.mark.parametrize("kind", [CALL, REPLY, EXCEPTION])
@pytest.mark.parametrize("name", ["ack", "getActiveTopics"])
def test_frame_is_the_one_that_thrift_writes(kind: int, name: str) -> None:
    frame = frame_message(head_prefix(kind, name.encode()), SEQID.pack(77), b"body\0")
    assert frame == thrift_frame(kind, name, 77, b"body\0")


def test_frame_of_a_call_is_the_one_that_thrift_writes() -> None:
    method, request = ThriftMethod("ack"), ttypes.AckRequest("n", [ttypes.Lease("3-1", 7)])
    buffer = TMemoryBuffer()
    Foqs.ack_args(request).write(TBinaryProtocol(buffer))
    assert method.frame(5, method.encode(request)) == thrift_frame(CALL, "ack", 5, buffer.getvalue())
