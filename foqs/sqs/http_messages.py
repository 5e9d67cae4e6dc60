"""HTTP requests and replies, as the protocols of SQS read and make them. Knows nothing of sockets or actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4


class HttpHead:
    """An HTTP request without its body.

    Attributes:
        path, query: as they were sent.
        headers: all lines, in order.
        peer: the address that the request came from.
    """

    __slots__ = ("_first_values", "headers", "method", "path", "peer", "query", "scheme")

    def __init__(
        self, method: str, scheme: str, target: str, headers: Sequence[tuple[str, str]], peer: str = "unknown"
    ) -> None:
        self.peer = peer
        self.method = method
        self.scheme = scheme
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self._first_values = {name.lower(): value for name, value in reversed(headers)}

    def header(self, name: str) -> str | None:
        """Return the first value of a header, by its name in lower case."""
        return self._first_values.get(name)

    @property
    def media_type(self) -> str:
        """The type of the body, in lower case and without parameters."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()


@dataclass(slots=True, frozen=True)
class HttpReply:
    """An HTTP reply.

    Attributes:
        action: the name of a known action, or `unknown`.
        error: the shape of a failure, or None.
        give_back: called if no byte of the reply is given to the transport.
        before_write: called before the first byte is given to it, if there is a `give_back`.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    action: str
    error: str | None = None
    give_back: Callable[[], None] | None = None
    before_write: Callable[[], None] = lambda: None


def reply_headers(content_type: str, request_id: str | None = None) -> dict[str, str]:
    """Return the headers of a reply; None: a new request id."""
    return {"Content-Type": content_type, "Server": "foqs", "x-amzn-RequestId": request_id or str(uuid4())}
