"""Refuses items of producers and consumers that pass for messages that the SQS server has made.

Always true: a principal that is no administrator gives no item a payload or metadata that
names a sender or an origin, whichever host it calls; nothing of such a call is done.
Hosts are administrators, so a forwarded call was checked where it was made. The SQS server
makes its calls inside the host, where nothing is checked. Knows nothing of what is in a message.
"""

from __future__ import annotations

from typing import Any

from foqs.core.items.reserved_starts import MESSAGE_START, ORIGIN_START
from foqs.rpc.request_bytes import UsualItems
from foqs_contract.errors import PermissionDenied
from foqs_contract.idl import ttypes


def check_items(request: ttypes.EnqueueRequest) -> None:
    """Raise `PermissionDenied` if a new item passes for a message."""
    items: Any = request.items
    if type(items) is UsualItems:
        for place, (_, _, payload, metadata, _) in enumerate(items.rows):
            if payload.startswith(MESSAGE_START) or metadata.startswith(ORIGIN_START):
                raise _refusal(f"items[{place}]", is_payload=payload.startswith(MESSAGE_START))
        return
    for place, item in enumerate(items or ()):
        is_message = (item.payload or b"").startswith(MESSAGE_START)
        if is_message or (item.metadata or b"").startswith(ORIGIN_START):
            raise _refusal(f"items[{place}]", is_payload=is_message)


def check_nacks(request: ttypes.NackRequest) -> None:
    """Raise `PermissionDenied` if a nack gives an item the origin of a dead letter."""
    for place, nack in enumerate(request.nacks or ()):
        if nack.metadata is not None and nack.metadata.startswith(ORIGIN_START):
            raise _refusal(f"nacks[{place}]", is_payload=False)


def _refusal(entry: str, *, is_payload: bool) -> PermissionDenied:
    what = (
        "payload begins as a message of SQS, which names its sender"
        if is_payload
        else ("metadata begins as the origin of a dead letter of SQS")
    )
    return PermissionDenied(
        f"this {what}; send the message to the SQS server, or restore it as an ADMIN of the namespace",
        field=f"{entry}.{'payload' if is_payload else 'metadata'}",
    )
