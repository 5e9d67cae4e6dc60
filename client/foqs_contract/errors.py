"""The errors of a call: one class for each error code, and what a caller may do after it.

Always true: after every error except `UnknownOutcome`, nothing was written or will
be. The text says what is wrong and what to do. The attributes `retryable`,
`retryable_elsewhere` and `hides_write` say which errors may be retried, and where.
Imports nothing of Thrift.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

HANDOVER_RETRY_MS: Final = 100
"""When to retry a call whose shard is being handed over or taken over. Another host may serve it then."""

_ENTRY_INDEX: Final = re.compile(r"\[(\d+)\]")
"""Matches the index of an entry in the field of an error."""


class ErrorCode(enum.IntEnum):
    """The numbers of `ErrorCode` in thrift/foqs.thrift."""

    INVALID_ARGUMENT = 1
    LIMIT_EXCEEDED = 2
    NAMESPACE_NOT_FOUND = 3
    UNAUTHENTICATED = 4
    PERMISSION_DENIED = 5
    RATE_LIMITED = 6
    OVERLOADED = 7
    UNAVAILABLE = 8
    NOT_OWNER = 9
    STALE_LEASE = 10
    NOT_FOUND = 11
    KEY_CONFLICT = 12
    DEADLINE_EXCEEDED = 13
    NOT_IMPLEMENTED = 14
    UNKNOWN_OUTCOME = 15
    KEY_ENDED = 16


class FoqsError(Exception):
    """The base of all errors of a call.

    After every error except `UnknownOutcome`, nothing was written or will be.

    Attributes:
        code: the name of the code, such as `INVALID_ARGUMENT`.
        number: the code in a reply. An error that only a client raises has none.
        retryable: nothing was written, and the same host may do it later.
        retryable_elsewhere: nothing was written, and another host may do it now.
        hides_write: it may have been written. It may be repeated only if a repeat does no harm.
        message: one sentence: what is wrong and what to do.
        field: the path of the wrong field of the request, such as `items[3].topic`.
        retry_after_ms: how long to wait before the next attempt; None if the host did not say.
        owner: (host, port) of the shard's owner; only with `NotOwner`.
    """

    code: ClassVar[str] = "UNKNOWN"
    number: ClassVar[ErrorCode]
    retryable: ClassVar[bool] = False
    retryable_elsewhere: ClassVar[bool] = False
    hides_write: ClassVar[bool] = False

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

    @property
    def may_succeed_later(self) -> bool:
        """Whether a later attempt, perhaps at another host, may succeed."""
        return self.retryable or self.retryable_elsewhere or self.hides_write

    @property
    def may_succeed_elsewhere(self) -> bool:
        """Whether a call that does no harm twice may be sent to another host now."""
        return self.retryable_elsewhere or self.hides_write

    def with_shifted_index(self, offset: int = 0) -> Self:
        """Return this error for a caller whose entries begin at `offset` in the call that was sent."""
        field = self.field
        if field is not None and offset:
            field = _ENTRY_INDEX.sub(lambda place: f"[{int(place[1]) - offset}]", field, count=1)
        return type(self)(self.message, field=field, retry_after_ms=self.retry_after_ms, owner=self.owner)

    def with_renamed_places(self, rename: Callable[[str], str]) -> Self:
        """Return this error with the names of fields as its caller knows them, in the field and in the message."""
        field = None if self.field is None else rename(self.field)
        return type(self)(rename(self.message), field=field, retry_after_ms=self.retry_after_ms, owner=self.owner)

    def __str__(self) -> str:
        where = f" ({self.field})" if self.field else ""
        return f"{self.code}{where}: {self.message}"


class InvalidArgument(FoqsError):
    """The request, or an argument, is wrong; `field` names it. Do not retry it unchanged."""

    number = ErrorCode.INVALID_ARGUMENT
    code = number.name


class LimitExceeded(FoqsError):
    """Something is too large, or there are too many; `field` names it."""

    number = ErrorCode.LIMIT_EXCEEDED
    code = number.name


class NamespaceNotFound(FoqsError):
    """There is no such namespace. Create it first."""

    number = ErrorCode.NAMESPACE_NOT_FOUND
    code = number.name


class Unauthenticated(FoqsError):
    """The host does not know the client. Check its token or certificate."""

    number = ErrorCode.UNAUTHENTICATED
    code = number.name


class PermissionDenied(FoqsError):
    """The principal may not make this call; `field` names the grant that it lacks, or the part that it may not send."""

    number = ErrorCode.PERMISSION_DENIED
    code = number.name


class RateLimited(FoqsError):
    """The enqueue rate of the namespace is used up. Retry after `retry_after_ms`."""

    number = ErrorCode.RATE_LIMITED
    code = number.name
    retryable = True


class TemporaryRefusal(FoqsError):
    """The base of the errors of a host or shard that accepts nothing now. Another one may accept it."""

    retryable = True
    retryable_elsewhere = True


class Overloaded(TemporaryRefusal):
    """The host has no room now. Retry after `retry_after_ms`."""

    number = ErrorCode.OVERLOADED
    code = number.name


class Unavailable(TemporaryRefusal):
    """The shard is not served now: it is starting, recovering, or its database failed. Retry after `retry_after_ms`."""

    number = ErrorCode.UNAVAILABLE
    code = number.name


class NotOwner(FoqsError):
    """Another host owns the shard; `owner` names it if it is known."""

    number = ErrorCode.NOT_OWNER
    code = number.name
    retryable_elsewhere = True


class StaleLease(FoqsError):
    """The lease has ended or was replaced. Stop the work on this delivery."""

    number = ErrorCode.STALE_LEASE
    code = number.name


class NotFound(FoqsError):
    """The namespace has no such item, or no such bulk job."""

    number = ErrorCode.NOT_FOUND
    code = number.name


class KeyConflict(FoqsError):
    """The idempotency key was used before for another item."""

    number = ErrorCode.KEY_CONFLICT
    code = number.name


class KeyEnded(FoqsError):
    """The end of the item's key has passed. An earlier enqueue may have made an item; this one did not."""

    number = ErrorCode.KEY_ENDED
    code = number.name


class DeadlineExceeded(FoqsError):
    """The call's time ended before anything was written."""

    number = ErrorCode.DEADLINE_EXCEEDED
    code = number.name
    retryable = True


class NotImplementedYet(FoqsError):
    """The host does not serve this call or field: its version, or a host without a cluster, lacks it."""

    number = ErrorCode.NOT_IMPLEMENTED
    code = number.name


class UnknownOutcome(FoqsError):
    """The call may have been written, or may still be."""

    number = ErrorCode.UNKNOWN_OUTCOME
    code = number.name
    hides_write = True


ERROR_BY_CODE: Final[dict[int, type[FoqsError]]] = {
    kind.number: kind
    for kind in (
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
        KeyEnded,
    )
}


def error_from_struct(failed: Any, default_text: str) -> FoqsError:
    """Return the error of an `Error` struct of a reply. An unknown code is an `UnknownOutcome`."""
    owner = failed.owner
    return ERROR_BY_CODE.get(failed.code or 0, UnknownOutcome)(
        failed.message or default_text,
        field=failed.field,
        retry_after_ms=failed.retry_after_ms,
        owner=None if owner is None else (owner.host, owner.port),
    )
