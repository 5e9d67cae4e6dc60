"""The errors of the client: those of `foqs_contract.errors`, and `Unreachable`.

Always true: after every error except `UnknownOutcome`, nothing was written or will
be. Only the client raises `Unreachable`: no host could be reached, or a call that only
reads got no reply.
"""

from __future__ import annotations

from foqs_contract.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    KeyConflict,
    KeyEnded,
    LimitExceeded,
    NamespaceNotFound,
    NotFound,
    NotImplementedYet,
    NotOwner,
    Overloaded,
    PermissionDenied,
    RateLimited,
    StaleLease,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)

__all__ = [
    "DeadlineExceeded",
    "FoqsError",
    "InvalidArgument",
    "KeyConflict",
    "KeyEnded",
    "LimitExceeded",
    "NamespaceNotFound",
    "NotFound",
    "NotImplementedYet",
    "NotOwner",
    "Overloaded",
    "PermissionDenied",
    "RateLimited",
    "StaleLease",
    "Unauthenticated",
    "Unavailable",
    "UnknownOutcome",
    "Unreachable",
]


class Unreachable(FoqsError):
    """No host could be reached, or a call that only reads got no reply. Nothing was written."""

    code = "UNREACHABLE"
    retryable = True
