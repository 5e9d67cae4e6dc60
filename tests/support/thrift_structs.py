"""Structs as the generated Thrift code writes and reads them, to compare the contract's own coding with."""

from __future__ import annotations

from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.transport.TTransport import TMemoryBuffer

from foqs_client import Enqueued, Item, conversion
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

ENQUEUE = ThriftMethod("enqueue", element_class=Enqueued)


def written(struct: Any) -> bytes:
    """Return the bytes that the generated code writes."""
    buffer = TMemoryBuffer()
    struct.write(TBinaryProtocolAccelerated(buffer, fallback=False))
    data: bytes = buffer.getvalue()
    return data


def read(kind: Any, data: bytes) -> Any:
    """Return the struct that the generated code reads."""
    struct = kind()
    struct.read(TBinaryProtocolAccelerated(TMemoryBuffer(data), fallback=False))
    return struct


def enqueued_items(*items: Item) -> Any:
    """Return the items of an enqueue, after they were encoded by the contract and read by the generated code."""
    given: list[Any] = conversion.items(items)
    body = ENQUEUE.encode(ttypes.EnqueueRequest("n", given))
    return read(ttypes.EnqueueRequest, body).items
