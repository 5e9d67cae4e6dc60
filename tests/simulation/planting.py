"""How a bug is planted: in the place of what a module holds under a name.

Always true: what is not there is not replaced, so a bug whose place was moved fails
rather than doing nothing.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def plant(module: ModuleType, name: str, bug: Any) -> Any:
    """Returns what the bug takes the place of. Raises KeyError where there is nothing."""
    names = vars(module)
    original = names[name]
    names[name] = bug
    return original
