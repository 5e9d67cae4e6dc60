"""The largest payload and metadata that any namespace can allow, in bytes."""

from __future__ import annotations

from typing import Final

PAYLOAD_BYTES_CEILING: Final = (1 << 20) + 64 * 1024
"""1 MiB, and an envelope."""
METADATA_BYTES_CEILING: Final = 1_024
