"""The errors of SQS: their shapes, the codes and statuses of the query protocol, and FOQS' errors as SQS has them.

Always true: each error has a shape that SDKs know; an error of FOQS that may be
repeated becomes one that SDKs repeat, and an unknown outcome becomes status 500.
Pure; knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from foqs_contract.errors import (
    FoqsError,
    InvalidArgument,
    KeyConflict,
    KeyEnded,
    LimitExceeded,
    NamespaceNotFound,
    NotFound,
    NotImplementedYet,
    PermissionDenied,
    RateLimited,
    StaleLease,
    Unauthenticated,
    UnknownOutcome,
)


class ErrorShape(NamedTuple):
    """A kind of error: the code and the HTTP status that the query protocol has for it, and the namespace of its type."""

    query_code: str
    status: int = 400
    namespace: str = "com.amazonaws.sqs"

    @property
    def is_sender_fault(self) -> bool:
        return self.status < 500


_PREFIX: Final = "AWS.SimpleQueueService."
_COMMON: Final = "com.amazon.coral.service"
_PREFIXED: Final = (
    "BatchEntryIdsNotDistinct",
    "BatchRequestTooLong",
    "EmptyBatchRequest",
    "InvalidBatchEntryId",
    "MessageNotInflight",
    "QueueDeletedRecently",
    "TooManyEntriesInBatchRequest",
    "UnsupportedOperation",
)
_PLAIN: Final = (
    "InvalidAddress",
    "InvalidAttributeName",
    "InvalidAttributeValue",
    "InvalidIdFormat",
    "InvalidMessageContents",
    "InvalidSecurity",
    "ReceiptHandleIsInvalid",
)

SHAPES: Final[Mapping[str, ErrorShape]] = {
    **{name: ErrorShape(_PREFIX + name) for name in _PREFIXED},
    **{name: ErrorShape(name) for name in _PLAIN},
    "QueueDoesNotExist": ErrorShape(_PREFIX + "NonExistentQueue"),
    "QueueNameExists": ErrorShape("QueueAlreadyExists"),
    "PurgeQueueInProgress": ErrorShape(_PREFIX + "PurgeQueueInProgress", 403),
    "OverLimit": ErrorShape("OverLimit", 403),
    "RequestThrottled": ErrorShape("RequestThrottled", 403),
    "ResourceNotFoundException": ErrorShape("ResourceNotFoundException", 404),
    "InvalidParameterValueException": ErrorShape("InvalidParameterValue", 400, _COMMON),
    "MissingRequiredParameterException": ErrorShape("MissingParameter", 400, _COMMON),
    "AccessDeniedException": ErrorShape("AccessDenied", 403, _COMMON),
    "MissingAuthenticationTokenException": ErrorShape("MissingAuthenticationToken", 403, _COMMON),
    "IncompleteSignatureException": ErrorShape("IncompleteSignature", 400, _COMMON),
    "InvalidSignatureException": ErrorShape("SignatureDoesNotMatch", 403, _COMMON),
    "UnrecognizedClientException": ErrorShape("InvalidClientTokenId", 403, _COMMON),
    "SerializationException": ErrorShape("MalformedInput", 400, _COMMON),
    "UnknownOperationException": ErrorShape("InvalidAction", 400, _COMMON),
    "RequestEntityTooLargeException": ErrorShape("RequestEntityTooLarge", 413, _COMMON),
    "InternalFailure": ErrorShape("InternalFailure", 500, _COMMON),
    "ServiceUnavailableException": ErrorShape("ServiceUnavailable", 503, _COMMON),
}
"""The errors by shape."""

AUTHENTICATION_ERRORS: Final = frozenset(
    (
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    )
)


MESSAGE_CHARS_MAX: Final = 2_000
"""A longer text is cut: it repeats a value that may be as long as a request."""


class SqsError(Exception):
    """An error in SQS' terms. `shape` is a key of `SHAPES`; `message` is what the client shows."""

    def __init__(self, shape: str, message: str) -> None:
        if len(message) > MESSAGE_CHARS_MAX:
            message = f"{message[:MESSAGE_CHARS_MAX]}..."
        super().__init__(message)
        self.shape = shape
        self.message = message

    @property
    def query_code(self) -> str:
        return SHAPES[self.shape].query_code


def queue_does_not_exist() -> SqsError:
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def invalid_value(message: str) -> SqsError:
    """Return the error for a value that is not allowed."""
    return SqsError("InvalidParameterValueException", message)


def invalid_parameter(value: object, name: str, reason: str) -> SqsError:
    """Return the error for the value of a parameter."""
    return invalid_value(f"Value {value} for parameter {name} is invalid. Reason: {reason}")


def missing_parameter(name: str) -> SqsError:
    return SqsError("MissingRequiredParameterException", f"The request must contain the parameter {name}.")


def unsupported(message: str) -> SqsError:
    return SqsError("UnsupportedOperation", message)


def from_foqs_error(error: FoqsError) -> SqsError:
    """Return an error of FOQS in SQS' terms. Details of the cluster, such as owners, are left out."""
    return SqsError(_shape_of(error), error.message)


def _shape_of(error: FoqsError) -> str:
    match error:
        case UnknownOutcome() | KeyConflict():
            return "InternalFailure"
        case RateLimited():
            return "RequestThrottled"
        case PermissionDenied():
            return "AccessDeniedException"
        case Unauthenticated():
            return "MissingAuthenticationTokenException"
        case NamespaceNotFound():
            return "QueueDoesNotExist"
        case LimitExceeded():
            return "InvalidParameterValueException" if (error.field or "").endswith("lease_ms") else "OverLimit"
        case NotImplementedYet():
            return "UnsupportedOperation"
        case InvalidArgument() | KeyEnded():
            return "InvalidParameterValueException"
        case StaleLease() | NotFound():
            return "ReceiptHandleIsInvalid"
    return "ServiceUnavailableException" if error.may_succeed_later else "InternalFailure"
