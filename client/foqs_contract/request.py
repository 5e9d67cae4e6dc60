"""Protocols of the requests, by the fields that generic code reads.

Always true: the requests of the contract have these fields; mypy compares them with the
generated structs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol


class Request(Protocol):
    """The request of any call."""

    thrift_spec: ClassVar[tuple[Any, ...]]
    timeout_ms: int | None


class ForwardedRequest(Request, Protocol):
    """A request with the field `forwarded`: true if a host sends the call on for its own caller."""

    forwarded: bool | None


class ShardsRequest(ForwardedRequest, Protocol):
    """A request with the field `shards`: a host that forwards the call names the shards that the receiver serves."""

    shards: Sequence[int] | None


class RequestOfNamespace(Request, Protocol):
    """A request with the field `namespace_name`. A host decodes it as bytes."""

    namespace_name: bytes | None


class RequestOfIds(RequestOfNamespace, Protocol):
    """A request with the field `ids`: the call does the same to each of these items."""

    ids: Sequence[bytes] | None


class RequestOfItems(ForwardedRequest, Protocol):
    """A request with the field `items`: the items that the call adds."""

    items: Sequence[Any] | None
