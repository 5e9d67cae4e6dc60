"""The errors of the client: one class for each error code.

Always true: after every error except `UnknownOutcome`, nothing was written or will
be. The text says what is wrong and what to do. Only the client raises
`Unreachable`: no host could be reached, or a call that only reads got no reply.
Knows nothing of Thrift.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final, Self

_ENTRY_INDEX: Final = re.compile(r"\[(\d+)\]")
"""Matches the index of an entry in the field of an error."""


class FoqsError(Exception):
    """The base of all errors of the client.

    After every error except `UnknownOutcome`, nothing was written or will be.

    Attributes:
        code: the name of the code, such as `INVALID_ARGUMENT`.
        message: one sentence: what is wrong and what to do.
        field: the path of the wrong field of the request, such as `items[3].topic`.
        retry_after_ms: how long to wait before the next attempt; None if the host did not say.
        owner: (host, port) of the shard's owner; only with `NotOwner`.
    """

    code: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
        owner: tuple[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_ms = retry_after_ms
        self.owner = owner

    def with_shifted_index(self, offset: int = 0) -> Self:
        """Return this error for a caller whose entries begin at `offset` in the call that was sent."""
        field = self.field
        if field is not None and offset:
            field = _ENTRY_INDEX.sub(lambda place: f"[{int(place[1]) - offset}]", field, count=1)
        return type(self)(self.message, field=field, retry_after_ms=self.retry_after_ms, owner=self.owner)

    def __str__(self) -> str:
        where = f" ({self.field})" if self.field else ""
        return f"{self.code}{where}: {self.message}"


class InvalidArgument(FoqsError):
    """The request, or an argument, is wrong; `field` names it. Do not retry it unchanged."""

    code = "INVALID_ARGUMENT"


class LimitExceeded(FoqsError):
    """Something is too large, or there are too many; `field` names it."""

    code = "LIMIT_EXCEEDED"


class NamespaceNotFound(FoqsError):
    """There is no such namespace. Create it first."""

    code = "NAMESPACE_NOT_FOUND"


class Unauthenticated(FoqsError):
    """The host does not know the client. Check its token or certificate."""

    code = "UNAUTHENTICATED"


class PermissionDenied(FoqsError):
    """The principal has no grant for this call; `field` names the grant."""

    code = "PERMISSION_DENIED"


class RateLimited(FoqsError):
    """The enqueue rate of the namespace is used up. Retry after `retry_after_ms`."""

    code = "RATE_LIMITED"


class Overloaded(FoqsError):
    """The host has no room now. Retry after `retry_after_ms`."""

    code = "OVERLOADED"


class Unavailable(FoqsError):
    """The shard is not served now: it is starting, recovering, or its database failed. Retry after `retry_after_ms`."""

    code = "UNAVAILABLE"


class NotOwner(FoqsError):
    """Another host owns the shard; `owner` names it if it is known."""

    code = "NOT_OWNER"


class StaleLease(FoqsError):
    """The lease has ended or was replaced. Stop the work on this delivery."""

    code = "STALE_LEASE"


class NotFound(FoqsError):
    """The namespace has no such item."""

    code = "NOT_FOUND"


class KeyConflict(FoqsError):
    """The idempotency key was used before for another item."""

    code = "KEY_CONFLICT"


class DeadlineExceeded(FoqsError):
    """The call's time ended before anything was written."""

    code = "DEADLINE_EXCEEDED"


class NotImplementedYet(FoqsError):
    """The host does not serve this call: its version, or a host without a cluster, lacks it."""

    code = "NOT_IMPLEMENTED"


class UnknownOutcome(FoqsError):
    """The call may have been written, or may still be."""

    code = "UNKNOWN_OUTCOME"


class Unreachable(FoqsError):
    """No host could be reached, or a call that only reads got no reply. Nothing was written."""

    code = "UNREACHABLE"


BY_NUMBER: Final[dict[int, type[FoqsError]]] = dict(
    enumerate(
        (
            InvalidArgument,
            LimitExceeded,
            NamespaceNotFound,
            Unauthenticated,
            PermissionDenied,
            RateLimited,
            Overloaded,
            Unavailable,
            NotOwner,
            StaleLease,
            NotFound,
            KeyConflict,
            DeadlineExceeded,
            NotImplementedYet,
            UnknownOutcome,
        ),
        start=1,
    )
)
"""The error classes by the numbers of `ErrorCode` in thrift/foqs.thrift."""
