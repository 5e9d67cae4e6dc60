"""The types of requests of which only the common fields are read.

Holds `Request` and protocols of more fields. Always true: the requests of the
contract have these fields; mypy compares them with the generated structs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol


class Request(Protocol):
    """The request of any call."""

    thrift_spec: ClassVar[tuple[Any, ...]]
    timeout_ms: int | None


class ForwardedRequest(Request, Protocol):
    """The request of a call that one host may make at another for its own caller."""

    forwarded: bool | None


class ShardsRequest(ForwardedRequest, Protocol):
    """The request of a call that each host of a tier serves for its part of the shards."""

    shards: Sequence[int] | None


class RequestOfNamespace(Request, Protocol):
    """The request of a call that names its namespace itself, as a host reads it."""

    namespace_name: bytes | None


class RequestOfIds(RequestOfNamespace, Protocol):
    """The request of a call that does the same to each of its items."""

    ids: Sequence[bytes] | None


class RequestOfItems(ForwardedRequest, Protocol):
    """The request of a call that adds items."""

    items: Sequence[Any] | None
