"""The end of a run that cannot go on."""

from __future__ import annotations


class DemoFailed(Exception):
    """One sentence for a person: what went wrong and what to do."""
