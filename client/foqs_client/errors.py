"""What a caller of the client must be ready for: one class for each error code.

Always true: every error but `UnknownOutcome` promises that nothing was or will
be written; the text says what is wrong and what to do. `Unreachable` is the
client's own: no host could be reached, or a call that only reads went
unanswered. Knows nothing of Thrift.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final, Self

_ENTRY_INDEX: Final = re.compile(r"\[(\d+)\]")
"""Of an entry in its call, in an error's field."""


class FoqsError(Exception):
    """An error with a code.

    Attributes:
        code: the name of the code, `INVALID_ARGUMENT` and so on.
        message: one sentence: what is wrong and what to do.
        field: the request's field at fault, as a path (`items[3].topic`).
        retry_after_ms: when to try again, where that helps.
        owner: (host, port) of a shard's owner, with `NotOwner`.
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
        """The same, of a call whose entries begin so many places later than those of the call that was sent."""
        field = self.field
        if field is not None and offset:
            field = _ENTRY_INDEX.sub(lambda place: f"[{int(place[1]) - offset}]", field, count=1)
        return type(self)(self.message, field=field, retry_after_ms=self.retry_after_ms, owner=self.owner)

    def __str__(self) -> str:
        where = f" ({self.field})" if self.field else ""
        return f"{self.code}{where}: {self.message}"


class InvalidArgument(FoqsError):
    """The request is wrong; do not retry it as it is."""

    code = "INVALID_ARGUMENT"


class LimitExceeded(FoqsError):
    """Too large or too many."""

    code = "LIMIT_EXCEEDED"


class NamespaceNotFound(FoqsError):
    """Create the namespace first."""

    code = "NAMESPACE_NOT_FOUND"


class Unauthenticated(FoqsError):
    """Authenticate first, or again."""

    code = "UNAUTHENTICATED"


class PermissionDenied(FoqsError):
    """A grant on the namespace is missing."""

    code = "PERMISSION_DENIED"


class RateLimited(FoqsError):
    """The namespace's rate is used up; retry after `retry_after_ms`."""

    code = "RATE_LIMITED"


class Overloaded(FoqsError):
    """The host has no room now; retry after `retry_after_ms`."""

    code = "OVERLOADED"


class Unavailable(FoqsError):
    """What serves this is not ready; retry after `retry_after_ms`."""

    code = "UNAVAILABLE"


class NotOwner(FoqsError):
    """Another host owns the shard: `owner`, when known."""

    code = "NOT_OWNER"


class StaleLease(FoqsError):
    """The lease is over; drop your copy of the item."""

    code = "STALE_LEASE"


class NotFound(FoqsError):
    """No such item in this namespace."""

    code = "NOT_FOUND"


class KeyConflict(FoqsError):
    """The idempotency key was used for another item."""

    code = "KEY_CONFLICT"


class DeadlineExceeded(FoqsError):
    """Time ran out before anything was written."""

    code = "DEADLINE_EXCEEDED"


class NotImplementedYet(FoqsError):
    """The host's version does not serve this."""

    code = "NOT_IMPLEMENTED"


class UnknownOutcome(FoqsError):
    """It may have been written, or may yet be."""

    code = "UNKNOWN_OUTCOME"


class Unreachable(FoqsError):
    """No host answered, and nothing was written."""

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
"""The numbers of `ErrorCode` in thrift/foqs.thrift."""
