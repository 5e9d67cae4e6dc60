"""The layout of a payload: the item's number, the moment at which it was due to be sent, and filling.

Always true: both are decimal digits of a fixed length. Knows nothing of load.
"""

from __future__ import annotations

from typing import Final

NUMBER_BYTES: Final = 16
"""A payload begins with its item's number in decimal."""
STAMP_BYTES: Final = 20
"""Then follows the nanosecond at which it was due to be sent."""
HEAD_BYTES: Final = NUMBER_BYTES + STAMP_BYTES


def filler(payload_bytes: int) -> bytes:
    """Return the payload after the number of an item that no producer sends."""
    return b"0" * STAMP_BYTES + b"x" * (payload_bytes - HEAD_BYTES)


def numbered(number: int, rest: bytes) -> bytes:
    """Return a whole payload."""
    return b"%016d%b" % (number, rest)
