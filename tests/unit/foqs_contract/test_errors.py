"""Tests what the error classes say about retries."""

from __future__ import annotations

from foqs_client import Unreachable
from foqs_contract.errors import (
    ERROR_BY_CODE,
    ErrorCode,
    FoqsError,
    NotOwner,
    TemporaryRefusal,
    UnknownOutcome,
    error_from_struct,
)
from foqs_contract.idl import ttypes

KINDS: tuple[type[FoqsError], ...] = (*ERROR_BY_CODE.values(), Unreachable, FoqsError)


def names(attribute: str) -> set[str]:
    """Return the codes of the errors that have this attribute."""
    return {kind.code for kind in KINDS if getattr(kind, attribute)}


def test_each_error_says_whether_and_where_it_may_be_retried() -> None:
    later = {"RATE_LIMITED", "OVERLOADED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNREACHABLE"}
    assert names("retryable") == later
    assert names("retryable_elsewhere") == {"OVERLOADED", "UNAVAILABLE", "NOT_OWNER"}
    assert {kind.code for kind in KINDS if issubclass(kind, TemporaryRefusal)} == {"OVERLOADED", "UNAVAILABLE"}
    assert names("hides_write") == {"UNKNOWN_OUTCOME"}
    elsewhere = {kind.code for kind in KINDS if kind("m").may_succeed_elsewhere}
    assert elsewhere == {"OVERLOADED", "UNAVAILABLE", "NOT_OWNER", "UNKNOWN_OUTCOME"}
    assert {kind.code for kind in KINDS if kind("m").may_succeed_later} == later | {"NOT_OWNER", "UNKNOWN_OUTCOME"}


def test_error_struct_becomes_its_error() -> None:
    owner = ttypes.HostAddress("h", 1)
    error = error_from_struct(ttypes.Error(ErrorCode.NOT_OWNER, "m", "f", 5, owner), "no reason")
    assert (type(error), error.message, error.field) == (NotOwner, "m", "f")
    assert (error.retry_after_ms, error.owner) == (5, ("h", 1))
    unknown = error_from_struct(ttypes.Error(99), "no reason")
    assert (type(unknown), unknown.message, unknown.owner) == (UnknownOutcome, "no reason", None)
