"""The text of any value, safe to send and to log.

Holds `safe_text`. Always true: it never raises, the text can be encoded as UTF-8, and
its length has a limit. Knows nothing of what the value is.
"""

from __future__ import annotations

from typing import Final

TEXT_CHARACTERS_MAX: Final = 1_000
"""A longer text, such as an exception with a whole document in it, is cut here."""


def safe_text(value: object) -> str:
    """Return `str(value)`, or a remark if it raises. Surrogates, as in names of files, become escapes."""
    try:
        text = str(value)
        cut = text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}..."
        return cut.encode("utf-8", "backslashreplace").decode()
    except Exception as error:
        return f"(its text cannot be read: {type(error).__name__})"
