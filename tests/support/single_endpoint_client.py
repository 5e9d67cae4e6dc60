"""A client as generated from the contract: it calls one host, one call after the other.

Always true: it is Thrift's blocking client on one connection. It has no routing
table and retries nothing. Knows one host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport

from foqs_contract.idl import Foqs, ttypes

_NAMESPACE: Final = "default"
_SILENCE_MS: Final = 90_000
"""A host that says nothing for so long has failed the test."""


class SingleEndpointClient:
    """Args:
    address: of its host, `foqs://host:port`.
    compact: speaks the compact protocol in place of the binary one.
    """

    def __init__(self, address: str, compact: bool = False) -> None:
        url = urlsplit(address)
        socket = TSocket(url.hostname, url.port)
        socket.setTimeout(_SILENCE_MS)
        self._transport = TFramedTransport(socket)
        self._client = Foqs.Client((TCompactProtocol if compact else TBinaryProtocol)(self._transport))

    def enqueue(self, topic: str, payloads: Sequence[bytes]) -> list[str]:
        """Their ids."""
        items = [ttypes.NewItem(topic=topic, payload=payload) for payload in payloads]
        results = self._client.enqueue(ttypes.EnqueueRequest(_NAMESPACE, items)).results or ()
        ids = [result.id for result in results if result.error is None and result.id is not None]
        assert len(ids) == len(items), results
        return ids

    def dequeue(self, topic: str, count: int, wait_ms: int, lease_ms: int) -> list[Any]:
        """Items as the contract has them."""
        topics = [ttypes.TopicCount(topic, count)]
        request = ttypes.DequeueRequest(_NAMESPACE, topics, wait_ms=wait_ms, timeout_ms=_SILENCE_MS, lease_ms=lease_ms)
        return list(self._client.dequeue(request).items or ())

    def ack(self, items: Sequence[Any]) -> list[Any]:
        """An outcome for each."""
        leases = [ttypes.Lease(item.id, item.token) for item in items]
        return list(self._client.ack(ttypes.AckRequest(_NAMESPACE, leases)).outcomes or ())

    def nack(self, items: Sequence[Any]) -> list[Any]:
        """To be delivered again at once; an outcome for each."""
        nacks = [ttypes.Nack(item.id, item.token, delay_ms=0) for item in items]
        return list(self._client.nack(ttypes.NackRequest(_NAMESPACE, nacks)).outcomes or ())

    def count(self, topic: str) -> int:
        """Items of a topic, in every state."""
        request = ttypes.CountItemsRequest(_NAMESPACE, ttypes.ItemFilter(topic=topic))
        items = self._client.countItems(request).items
        assert items is not None
        return items

    def owners(self) -> Mapping[int, int]:
        """By shard the port of the host that serves it."""
        shards: Sequence[Any] = self._client.getRouting(ttypes.GetRoutingRequest()).shards or ()
        return {shard.shard: shard.owner.port for shard in shards if shard.state == "owned"}

    def __enter__(self) -> Self:
        self._transport.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()
