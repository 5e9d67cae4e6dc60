"""The first bytes of payloads and metadata that only the SQS server writes.

They name the sender of a message, and say what became of it in another queue, and consumers
believe them. So with authentication no other caller may write them, except administrators and hosts.
"""

from __future__ import annotations

from typing import Final

MESSAGE_START: Final = b"\x00SQ\x01"
"""Begins a payload that is a message of SQS: an envelope that names its sender."""
ORIGIN_START: Final = b'{"sqs_origin":'
"""Begins metadata that are the origin of a dead letter: its former queue, MessageId and receives."""
