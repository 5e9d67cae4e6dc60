"""How payloads and metadata begin that only the SQS port makes.

They say who sent a message, and what became of it in another queue, and consumers believe
it. So with authentication nobody else may make them, except administrators and hosts.
"""

from __future__ import annotations

from typing import Final

MESSAGE_START: Final = b"\x00SQ\x01"
"""The payload is a message of SQS: an envelope that names its sender."""
ORIGIN_START: Final = b'{"sqs_origin":'
"""The metadata is the origin of a dead letter: its former queue, MessageId and receives."""
