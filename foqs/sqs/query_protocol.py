"""The Query protocol: the action and its parameters as a form or in the query of a URL, and its result as XML.

Parameters get the names and types that they have in JSON, so that the same code serves
both protocols. No XML is ever read. Always true: a request that would take much memory
is refused before it is built. Pure.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4
from xml.sax.saxutils import escape

from foqs.sqs.errors import SHAPES, SqsError, invalid_parameter, missing_parameter
from foqs.sqs.http_messages import HttpHead, HttpReply, reply_headers
from foqs.sqs.parameters import Parameters

FORM_TYPE: Final = "application/x-www-form-urlencoded"
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
PARAMETERS_MAX: Final = 1_000
"""The most parameters of a request. A full batch with all attributes has about 450."""
_DEPTH_MAX: Final = 8
_CONTENT_TYPE: Final = "text/xml"
_PLACE: Final = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
_TO_QUOTED_PRINTABLE: Final = bytes.maketrans(b"+=%", b" \xff=")
_NO_UTF8: Final = re.compile(rb"%[fF][fF]")
_WRONG_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MESSAGES: Final = {"QueueDoesNotExist": "The specified queue does not exist for this wsdl version."}
"""The texts that this protocol has in place of those of JSON."""
_ESCAPES: Final = {'"': "&quot;", "\r": "&#xD;"}


class _MapName(NamedTuple):
    """A map: the name of its entries in requests and replies, and of the key and the value of an entry."""

    member: str
    key: str = "Name"
    value: str = "Value"


_INTEGERS: Final = frozenset(
    (
        "DelaySeconds",
        "MaxNumberOfMessages",
        "MaxNumberOfMessagesPerSecond",
        "MaxResults",
        "VisibilityTimeout",
        "WaitTimeSeconds",
    )
)
_LISTS: Final[Mapping[str, str]] = {
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
    "AttributeName": "AttributeNames",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
}
"""The lists of requests: the name of their entries, and their name in JSON. That name with an empty value is an empty list."""
_LIST_NAMES: Final = frozenset(_LISTS.values())
_MAPS: Final[Mapping[str, _MapName]] = {
    "Attribute": _MapName("Attributes"),
    "MessageAttribute": _MapName("MessageAttributes"),
    "MessageSystemAttribute": _MapName("MessageSystemAttributes"),
    "Tag": _MapName("Tags", "Key"),
}
"""The maps of requests by the name of their entries; `member` is the name in JSON."""
_ENTRY_KEYS: Final[Mapping[str, str]] = {
    **{name: known.key for name, known in _MAPS.items()},
    **{name: "Id" for name, member in _LISTS.items() if member == "Entries"},
}
"""The lists and maps of structures by the name of their entries; the member that each entry has."""
_REPLY_LISTS: Final[Mapping[str, str]] = {
    "Failed": "BatchResultErrorEntry",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "Results": "ListMessageMoveTasksResultEntry",
    "queueUrls": "QueueUrl",
}
"""The lists of replies: their name in JSON, and the name of their entries. Entries of `Successful` depend on the action."""
_REPLY_MAPS: Final[Mapping[str, _MapName]] = {
    "Attributes": _MapName("Attribute"),
    "MessageAttributes": _MapName("MessageAttribute"),
    "Tags": _MapName("Tag", "Key"),
}
_WITHOUT_RESULT: Final = frozenset(
    (
        "AddPermission",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "DeleteQueue",
        "PurgeQueue",
        "RemovePermission",
        "SetQueueAttributes",
        "TagQueue",
        "UntagQueue",
    )
)


def is_query_request(head: HttpHead) -> bool:
    """Return whether a request is of this protocol."""
    return head.media_type == FORM_TYPE or (head.method == "GET" and "Action=" in head.query)


class QueryProtocol:
    """Reads requests of the Query protocol and makes their replies."""

    def read(self, head: HttpHead, body: bytes) -> tuple[str, Parameters]:
        """Return the action and its parameters. Raises `SqsError`."""
        # In the query a plus sign is itself, as the signature takes it. A form has it for a space.
        query = head.query.encode("utf-8", "surrogateescape").replace(b"+", b"%2B")
        tree = _tree([*_pairs(query), *_pairs(body)])
        action = tree.pop("Action", None)
        if not isinstance(action, str):
            raise missing_parameter("Action")
        return action, Parameters(_members(tree))

    def encode(self, action: str, result: Mapping[str, Any], request_id: str) -> Iterator[bytes]:
        """Yield the body of a success. Each entry of a list is a part by itself: it may be a long message."""
        yield _opening(f"{action}Response").encode()
        if action not in _WITHOUT_RESULT:
            yield f"<{action}Result>".encode()
            for element in _elements(action, result):
                yield element.encode()
            yield f"</{action}Result>".encode()
        yield f"{_metadata(request_id)}</{action}Response>".encode()

    def result(self, action: str, body: bytes, request_id: str) -> HttpReply:
        """Return the reply of a success."""
        return HttpReply(200, reply_headers(_CONTENT_TYPE, request_id), body, action)

    def error(self, action: str, error: SqsError) -> HttpReply:
        """Return the reply of a failure."""
        shape = SHAPES[error.shape]
        request_id = str(uuid4())
        fault = "Sender" if shape.is_sender_fault else "Receiver"
        message = _MESSAGES.get(error.shape, error.message)
        content = (
            f"<Error><Type>{fault}</Type><Code>{shape.query_code}</Code><Message>{_text(message)}</Message>"
            f"<Detail/></Error><RequestId>{request_id}</RequestId>"
        )
        document = f"{_opening('ErrorResponse')}{content}</ErrorResponse>".encode()
        return HttpReply(shape.status, reply_headers(_CONTENT_TYPE, request_id), document, action, error.shape)


# --------------------------------------------------------------------- requests


def _pairs(data: bytes) -> Sequence[tuple[str, str]]:
    """Return the parameters of a form. Raises `SqsError`."""
    if data.count(b"&") >= PARAMETERS_MAX:
        raise _malformed(f"It has more than {PARAMETERS_MAX} parameters.")
    if _WRONG_ESCAPE.search(data):
        raise _malformed("A percent sign is not followed by two hexadecimal digits.")
    parts = (part.partition(b"=") for part in data.split(b"&") if part)
    try:
        return [(_unquote(name), _unquote(value)) for name, _, value in parts]
    except UnicodeDecodeError:
        raise _malformed("It is not UTF-8.") from None


def _unquote(data: bytes) -> str:
    """Decode a name or a value of a form, without wrong escapes. Raises UnicodeDecodeError.

    Quoted-printable is the same with `=` in place of `%`. urllib takes a second for a message of 1 MiB, this some 50 ms.
    A byte that no UTF-8 has stands for `=` meanwhile.
    """
    if b"\xff" in data or _NO_UTF8.search(data):
        raise UnicodeDecodeError("utf-8", data, 0, 1, "it has a byte 0xFF")
    return a2b_qp(data.translate(_TO_QUOTED_PRINTABLE)).replace(b"\xff", b"=").decode()


def _tree(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return parameters as nested dicts, by the parts of their names. Raises `SqsError`."""
    tree: dict[str, Any] = {}
    for name, value in pairs:
        if name.startswith("X-Amz-") or name == "Version":  # of the signature, and of the protocol
            continue
        if name.count(".") >= _DEPTH_MAX:
            raise _malformed("A parameter's name has too many parts.")
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise _malformed(f"The parameter {part} is a value and has parts.")
        if last in node:
            raise _malformed(f"The parameter {name[:100]} appears twice.")
        node[last] = value
    return tree


def _members(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a structure as they are in JSON. Raises `SqsError`."""
    members: dict[str, Any] = {}
    for name, node in tree.items():
        if name in _MAPS and isinstance(node, dict):
            known = _MAPS[name]
            members[known.member] = dict(_entry(entry, known) for entry in _in_order(node, name))
        elif name in _LISTS:
            entries = _in_order(node, name) if isinstance(node, dict) else [node]
            members[_LISTS[name]] = [_value(name, entry) for entry in entries]
        elif name in _LIST_NAMES and node == "":
            members[name] = []
        else:
            members[name] = _value(name, node)
    return members


def _entry(node: Any, known: _MapName) -> tuple[str, Any]:
    """Return the (key, value) of an entry of a map. Raises `SqsError`."""
    key = node.get(known.key) if isinstance(node, dict) else None
    if not isinstance(key, str):
        raise missing_parameter(known.key)
    return key, _value(known.value, node.get(known.value, ""))


def _in_order(node: Mapping[str, Any], name: str) -> list[Any]:
    """Return the entries of a list or map by their numbers. Raises `SqsError`.

    A single entry may have no number: `Tag.Key` and `Tag.Value`.
    """
    if _ENTRY_KEYS.get(name) in node and not any(map(_PLACE.fullmatch, node)):
        return [node]
    for place in node:
        if not _PLACE.fullmatch(place):
            raise _malformed(f"The entries of {name} must be numbered from 1.")
    return [node[place] for place in sorted(node, key=int)]


def _value(name: str, node: Any) -> Any:
    if isinstance(node, dict):
        return _members(node)
    if name not in _INTEGERS:
        return node
    if not _INTEGER.fullmatch(node):
        raise invalid_parameter(node[:100], name, "Must be an integer.")
    return int(node)


def _malformed(problem: str) -> SqsError:
    return SqsError("SerializationException", f"The request cannot be read. {problem}")


# ---------------------------------------------------------------------- replies


def _elements(action: str, members: Mapping[str, Any]) -> Iterator[str]:
    """Yield the XML of the members of a structure."""
    for name, value in members.items():
        if isinstance(value, Mapping) and name in _REPLY_MAPS:
            known = _REPLY_MAPS[name]
            for key, entry in value.items():
                content = "".join((_element(action, known.key, key), _element(action, known.value, entry)))
                yield f"<{known.member}>{content}</{known.member}>"
        elif isinstance(value, list):
            entry_name = f"{action}ResultEntry" if name == "Successful" else _REPLY_LISTS[name]
            yield from (_element(action, entry_name, entry) for entry in value)
        else:
            yield _element(action, name, value)


def _element(action: str, name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"<{name}>{''.join(_elements(action, value))}</{name}>"
    if isinstance(value, bool):
        return f"<{name}>{'true' if value else 'false'}</{name}>"
    return f"<{name}>{_text(str(value))}</{name}>"


def _text(text: str) -> str:
    """Return text as it stands in XML, with the quirks of SQS. What XML cannot have is replaced."""
    return escape(_FORBIDDEN.sub("\ufffd", text), _ESCAPES)


_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _metadata(request_id: str) -> str:
    return f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"


def _opening(root: str) -> str:
    return f'<?xml version="1.0"?>\n<{root} xmlns="{NAMESPACE}">'
