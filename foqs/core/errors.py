"""The errors that a caller can get.

Holds one class per wire code and the table from code to class. Always true:
every error but `UnknownOutcome` promises that nothing was or will be written;
its text says what is wrong and what to do. Knows nothing of Thrift.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final

HANDOVER_RETRY_MS: Final = 100
"""When to retry a call whose shard is being handed over or taken over. Another host may serve it then."""


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


class FoqsError(Exception):
    """An error with a code.

    Args:
        message: one sentence that says what is wrong and what to do.
        field: the invalid field of the request, as a path (`items[3].topic`).
        retry_after_ms: when to try again, if that helps.
        owner: (host, port) of the shard's owner, with `NotOwner`.
    """

    code: ClassVar[ErrorCode]

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

    def __str__(self) -> str:
        where = f" ({self.field})" if self.field else ""
        return f"{self.code.name}{where}: {self.message}"


class InvalidArgument(FoqsError):
    code = ErrorCode.INVALID_ARGUMENT


class LimitExceeded(FoqsError):
    code = ErrorCode.LIMIT_EXCEEDED


class NamespaceNotFound(FoqsError):
    code = ErrorCode.NAMESPACE_NOT_FOUND


class Unauthenticated(FoqsError):
    code = ErrorCode.UNAUTHENTICATED


class PermissionDenied(FoqsError):
    code = ErrorCode.PERMISSION_DENIED


class RateLimited(FoqsError):
    code = ErrorCode.RATE_LIMITED


class Overloaded(FoqsError):
    code = ErrorCode.OVERLOADED


class Unavailable(FoqsError):
    code = ErrorCode.UNAVAILABLE


class NotOwner(FoqsError):
    code = ErrorCode.NOT_OWNER


class StaleLease(FoqsError):
    code = ErrorCode.STALE_LEASE


class NotFound(FoqsError):
    code = ErrorCode.NOT_FOUND


class KeyConflict(FoqsError):
    code = ErrorCode.KEY_CONFLICT


class DeadlineExceeded(FoqsError):
    code = ErrorCode.DEADLINE_EXCEEDED


class NotImplementedYet(FoqsError):
    code = ErrorCode.NOT_IMPLEMENTED


class UnknownOutcome(FoqsError):
    code = ErrorCode.UNKNOWN_OUTCOME


ERROR_BY_CODE: dict[ErrorCode, type[FoqsError]] = {
    kind.code: kind
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
    )
}
