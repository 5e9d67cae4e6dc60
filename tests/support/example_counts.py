"""How many examples and histories a test plays.

Tests of another interpreter and of the compiled modules run with `--hypothesis-profile few`: a rare history, which shows
a mistake in a rule, does not depend on either.
"""

from __future__ import annotations

from typing import Final

from hypothesis import settings

_USUAL: Final = settings.get_profile("foqs").max_examples


def examples(count: int) -> int:
    """Return `count`, or in a profile of Hypothesis with fewer examples the same part of it, at least 1."""
    return max(1, count * settings().max_examples // _USUAL)
