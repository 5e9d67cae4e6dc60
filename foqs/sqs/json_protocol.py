"""AWS JSON 1.0: the action in a header, its parameters and its result as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from foqs.sqs.errors import SHAPES, SqsError
from foqs.sqs.http_messages import HttpHead, HttpReply, reply_headers
from foqs.sqs.parameters import Parameters, parse_body

CONTENT_TYPE: Final = "application/x-amz-json-1.0"
TARGET_PREFIX: Final = "AmazonSQS."


class JsonProtocol:
    """Reads requests of the JSON protocol and makes their replies.

    Args:
        is_query_mode: the client knows the errors of the Query protocol, and gets their statuses.
    """

    def __init__(self, *, is_query_mode: bool) -> None:
        self._is_query_mode = is_query_mode

    def read(self, head: HttpHead, body: bytes) -> tuple[str, Parameters]:
        """Return the action and its parameters. Raises `SqsError`."""
        if head.method != "POST":
            raise SqsError("UnknownOperationException", "Requests must be POST.")
        target = head.header("x-amz-target") or ""
        if head.media_type != CONTENT_TYPE or not target.startswith(TARGET_PREFIX):
            raise SqsError(
                "UnknownOperationException",
                f"Requests need the Content-Type {CONTENT_TYPE} and an X-Amz-Target that begins with {TARGET_PREFIX}",
            )
        return target.removeprefix(TARGET_PREFIX), parse_body(body)

    def encode(self, action: str, result: Mapping[str, Any], request_id: str) -> Iterator[bytes]:
        """Yield the body of a success. Each entry of a list is a part by itself: it may be a long message."""
        opening = "{"
        for name, value in result.items():
            yield f"{opening}{json.dumps(name)}: ".encode()
            if isinstance(value, list):
                yield from _list_parts(value)
            else:
                yield _dump(value)
            opening = ", "
        yield b"}" if result else b"{}"

    def result(self, action: str, body: bytes, request_id: str) -> HttpReply:
        """Return the reply of a success."""
        return HttpReply(200, reply_headers(CONTENT_TYPE, request_id), body, action)

    def error(self, action: str, error: SqsError) -> HttpReply:
        """Return the reply of a failure."""
        shape = SHAPES[error.shape]
        fault = "Sender" if shape.is_sender_fault else "Receiver"
        headers = {**reply_headers(CONTENT_TYPE), "x-amzn-query-error": f"{shape.query_code};{fault}"}
        keeps_status = self._is_query_mode or shape.status >= 500 or shape.status == 413
        body = {"__type": f"{shape.namespace}#{error.shape}", "message": error.message}
        status = shape.status if keeps_status else 400
        return HttpReply(status, headers, json.dumps(body).encode(), action, error.shape)


def _list_parts(entries: Sequence[Any]) -> Iterator[bytes]:
    opening = b"["
    for entry in entries:
        yield opening
        yield _dump(entry)
        opening = b", "
    yield b"]" if entries else b"[]"


def _dump(value: Any) -> bytes:
    """Return a value as JSON. Text is UTF-8: escapes of six bytes for each letter would be up to three times as long."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a pair, which UTF-8 cannot have
        return json.dumps(value).encode()
