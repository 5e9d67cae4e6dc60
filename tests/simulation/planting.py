"""Plants a bug: replaces the object that a module holds under a name.

Always true: a missing name is an error, so a planted bug whose target was renamed
fails instead of doing nothing.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def plant(module: ModuleType, name: str, bug: Any) -> Any:
    """Replace an object of a module by a bug. Returns the original; raises KeyError if the name is missing."""
    names = vars(module)
    original = names[name]
    names[name] = bug
    return original
