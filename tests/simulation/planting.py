"""Plants a bug: replaces what a module or a class defines under a name.

Always true: a missing name is an error, so a planted bug whose target was renamed
fails instead of doing nothing.
"""

from __future__ import annotations

from types import ModuleType
from typing import TypeVar

_Bug = TypeVar("_Bug")


def plant(owner: ModuleType | type, name: str, bug: _Bug) -> _Bug:
    """Replace what `owner` defines by a bug of the same type. Returns the original; raises KeyError if the name is missing."""
    original: _Bug = vars(owner)[name]
    setattr(owner, name, bug)
    return original
